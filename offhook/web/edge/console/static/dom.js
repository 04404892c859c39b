// Elements without markup in strings: what callers say never becomes markup.

/** make("td", {className: "soft", title: "…"}, "text", element, …) */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "data") Object.assign(element.dataset, value);
    else if (name in element && name !== "list") element[name] = value; // which can only be read
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** The same for SVG; all properties are attributes. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A table whose first row names its columns; rows are lists of cells, texts or elements. */
export function table(caption, columns, rows) {
  const head = make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, name)));
  const body = rows.map((cells) =>
    make("tr", {}, ...cells.map((cell, column) => make("td", { data: { column: columns[column] } }, cell ?? ""))));
  return make(
    "div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": caption },
    make("table", {}, make("caption", { className: "unseen" }, caption),
      make("thead", {}, head), make("tbody", {}, ...body)));
}

/** Tells readers of the screen what has changed. */
export function say(text) {
  document.getElementById("said").textContent = text;
}

export function empty(title, ...what) {
  return make("div", { className: "empty" }, make("h2", {}, title), ...what.map((text) => make("p", {}, text)));
}
