// Creates elements. Text is inserted as text, never as markup.

/** An element with a class, attributes and children; strings become text. */
export function element(tag, className = "", children = [], attributes = {}) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...[children].flat());
  return node;
}

/** The element with an id. */
export function byId(id) {
  return document.getElementById(id);
}

/** The items of a description list: terms and figures. */
export function figures(pairs) {
  return pairs.map(([term, value]) =>
    element("div", "", [element("dt", "", term), element("dd", "", value)]));
}

/** A bar filled to `share` of 1, with its label for screen readers. */
export function meter(share, label) {
  const percent = Math.round(100 * Math.min(1, Math.max(0, share)));
  const fill = element("div", "fill");
  fill.style.inlineSize = `${percent}%`;
  return element("div", "meter", fill, {
    role: "meter", "aria-label": label, "aria-valuenow": percent, "aria-valuemin": 0,
    "aria-valuemax": 100, title: `${label}: ${percent}%`,
  });
}
