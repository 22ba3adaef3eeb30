"""The page at `/` of the server: a playground and an X-ray of what runs. Plain HTML, CSS and JavaScript modules.

The files are served as they lie here (`page.py`); there is no build step and nothing comes from elsewhere. The page
knows the server's HTTP interface only. Start at `index.html`, then `app.js`.
"""
