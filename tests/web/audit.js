// Looks over a page for what keeps people out: names, labels, ids, headings, contrast. Gives a list of findings.
() => {
  const found = [];
  const tell = (node, text) => found.push(`${node.tagName.toLowerCase()}#${node.id}.${node.className}: ${text}`);
  const isShown = (node) => node.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }) && !node.closest(".unseen");
  const getName = (node) => {
    const by = node.getAttribute("aria-labelledby");
    if (by) return by.split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join(" ").trim();
    return (node.getAttribute("aria-label") ?? node.labels?.[0]?.textContent ?? node.textContent ?? "").trim();
  };
  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) found.push(`id ${id} occurs twice`);
  for (const node of document.querySelectorAll("[aria-labelledby], [aria-describedby], [aria-controls], label[for]"))
    for (const name of ["aria-labelledby", "aria-describedby", "aria-controls", "for"])
      for (const id of (node.getAttribute(name) ?? "").split(" ").filter(Boolean))
        if (document.getElementById(id) === null) tell(node, `${name} names ${id}, which is not there`);
  for (const node of document.querySelectorAll("input, textarea")) if (!(node.labels?.length > 0)) tell(node, "no label");
  for (const node of document.querySelectorAll("button, a[href], summary, [role=img], [role=region], [role=group], [role=log], section"))
    if (getName(node) === "") tell(node, "no name");
  for (const node of document.querySelectorAll("img")) if (!node.hasAttribute("alt")) tell(node, "no alt");
  for (const node of document.querySelectorAll("canvas")) if (node.getAttribute("role") !== "img") tell(node, "no role");
  for (const node of document.querySelectorAll("table")) if (node.querySelector("caption, th[scope]") === null) tell(node, "no heads");
  if (document.documentElement.lang === "") found.push("no language");
  if (document.querySelectorAll("main").length !== 1 || document.querySelectorAll("h1").length !== 1) found.push("not one main and one h1");
  let level = 0;
  for (const node of document.querySelectorAll("h1, h2, h3, h4")) {
    const own = Number(node.tagName[1]);
    if (own > level + 1) tell(node, `heading of level ${own} below level ${level}`);
    level = own;
  }
  for (const node of document.querySelectorAll("*")) {
    const { scrollHeight, clientHeight, tabIndex } = node;
    const overflows = ["auto", "scroll"].includes(getComputedStyle(node).overflowY) && scrollHeight > clientHeight + 1;
    if (overflows && isShown(node) && tabIndex < 0 && node.querySelector("a[href], button, input, textarea, [tabindex='0']") === null) tell(node, "scrolls, but not by keyboard");
  }
  const parse = (text) => {
    const numbers = text.match(/[\d.]+/g).map(Number);
    return { rgb: numbers.slice(0, 3), alpha: numbers[3] ?? 1 };
  };
  const over = (top, bottom) => top.rgb.map((value, i) => value * top.alpha + bottom[i] * (1 - top.alpha));
  const getBackground = (node) => {
    const layers = [];
    for (let at = node; at !== null; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const getLight = (rgb) => {
    const [r, g, b] = rgb.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let lowest = 21;
  let count = 0;
  for (let text = texts.nextNode(); text !== null; text = texts.nextNode()) {
    const node = text.parentElement;
    if (text.data.trim() === "" || !isShown(node) || node.closest(":disabled, noscript, script")) continue;
    const background = getBackground(node);
    const lights = [getLight(over(parse(getComputedStyle(node).color), background)), getLight(background)].sort((a, b) => b - a);
    const contrast = (lights[0] + 0.05) / (lights[1] + 0.05);
    count += 1;
    lowest = Math.min(lowest, contrast);
    // WCAG 2.2, 1.4.3: 4.5 for text that is not large.
    if (contrast < 4.5) tell(node, `contrast ${contrast.toFixed(2)} of ${text.data.trim().slice(0, 40)}`);
  }
  return { found, lowest, count };
}
