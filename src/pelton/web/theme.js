// Light or dark: as the system says, or as the visitor chose. Charts ask `getColors`.

const NAME = "pelton-theme";
const CHOICES = ["auto", "light", "dark"];
// For which media the dark theme's style sheet holds.
const DARK_MEDIA = { auto: "(prefers-color-scheme: dark)", light: "not all", dark: "all" };
const COLOR_NAMES = [
  "ink",
  "muted",
  "line",
  "sheet",
  "accent",
  "queue",
  "prefill",
  "decode",
  "stall",
  "arithmetic",
  "cached",
  "own",
  "shared",
  "request",
  "request-shared",
  "free",
  "tokenize",
];

let colors = null;
const listeners = [];

/** Set up the switch; `onChange` of `watchTheme` is called whenever colours change. */
export function startTheme(button) {
  const dark = document.getElementById("dark");
  let choice = readChoice();
  const apply = () => {
    dark.media = DARK_MEDIA[choice];
    button.textContent = `Theme: ${choice}`;
    announce();
  };
  button.addEventListener("click", () => {
    choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
    try {
      localStorage.setItem(NAME, choice);
    } catch {
      // It holds until the page is left.
    }
    apply();
  });
  matchMedia(DARK_MEDIA.auto).addEventListener("change", announce);
  dark.addEventListener("load", announce);
  apply();
}

/** Call `listener` after every change of colours. */
export function watchTheme(listener) {
  listeners.push(listener);
}

/** The colours of this moment by name, for canvases. */
export function getColors() {
  if (colors === null) {
    const style = getComputedStyle(document.documentElement);
    colors = Object.fromEntries(COLOR_NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }
  return colors;
}

function announce() {
  colors = null;
  for (const listener of listeners) listener();
}

function readChoice() {
  try {
    const stored = localStorage.getItem(NAME);
    return CHOICES.includes(stored) ? stored : "auto";
  } catch {
    return "auto";
  }
}
