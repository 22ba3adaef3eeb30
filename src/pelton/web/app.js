// The page: puts the playground, the X-ray, the key and the theme together. Start here.

import { Api } from "./api.js";
import { Playground } from "./chat.js";
import { byId, setText } from "./dom.js";
import { formatCount, formatShort, plural } from "./format.js";
import { startTheme } from "./theme.js";
import { Xray } from "./xray.js";

const api = new Api();
startTheme(byId("theme-button"));
const xray = new Xray(api, showServed);
new Playground(api, (run) => xray.look(run));
startKeyForm();

function showServed(engine, error) {
  if (engine === null) {
    setText(byId("served"), error.status === 401 ? "needs an API key" : "no connection");
    if (error.status === 401) openKeyForm(false);
    return;
  }
  const { model } = engine;
  setText(
    byId("served"),
    `${model.name} · ${formatShort(model.parameters)} parameters · ${engine.isa} · ${plural(engine.threads, "thread")} · context ${formatCount(engine.context_length)}`,
  );
}

function startKeyForm() {
  byId("key-button").addEventListener("click", () => (byId("key-form").hidden ? openKeyForm(true) : closeKeyForm()));
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    api.setKey(byId("key").value);
    byId("key").value = "";
    closeKeyForm();
    byId("key-button").focus();
    xray.wake();
  });
  document.addEventListener("key-wanted", () => openKeyForm(true));
}

function openKeyForm(takesFocus) {
  byId("key-form").hidden = false;
  byId("key-button").setAttribute("aria-expanded", "true");
  if (takesFocus) byId("key").focus();
}

function closeKeyForm() {
  byId("key-form").hidden = true;
  byId("key-button").setAttribute("aria-expanded", "false");
}
