// A flow as a graph: nodes in rows by how far they are from the first one, and lines between them for the
// functions that lead on. `layout` is pure; `FlowView` draws it, with the same as a list beneath.

const NODE = { width: 124, height: 44 };
const GAP = { x: 20, y: 64 }; // between nodes of a row, and between rows
const MARGIN = 28; // room for lines that lead back
const LANE = 16; // between lines that lead back, right of the nodes
const CHARS = 16; // of a node's name that its box has room for
const LABEL_CHARS = 18;
const SVG = "http://www.w3.org/2000/svg";
const DOES = {
  say: (words) => `says “${words}”`,
  hang_up: () => "hangs up",
  transfer: (target) => `transfers to ${target}`,
  hand_over: (agent) => `hands over to ${agent}`,
};

/** What a node does without the model, in words. */
export function actionsOf({ before, after }) {
  return [...before, ...after].map(({ does, with: what }) => DOES[does](what));
}

/** The lines that lead on from a node, one a target: `{to, labels}`. */
export function linesOf({ edges }) {
  const lines = new Map();
  for (const { to, function: name, when } of edges) {
    if (!lines.has(to)) lines.set(to, []);
    const label = when ? when.slice(when.lastIndexOf(" is ") + 4) : name;
    if (!lines.get(to).includes(label)) lines.get(to).push(label);
  }
  return [...lines].map(([to, labels]) => ({ to, labels }));
}

/** Where all of a flow is drawn: `{width, height, nodes: [{name, x, y}], lines: [{from, to, label, x, y, path}]}`. */
export function layout(flow) {
  const rows = rowsOf(flow);
  const widest = Math.max(...rows.map((row) => row.length));
  const inner = widest * (NODE.width + GAP.x) - GAP.x;
  const places = new Map();
  rows.forEach((row, depth) => {
    const left = MARGIN + (inner - (row.length * (NODE.width + GAP.x) - GAP.x)) / 2;
    row.forEach((name, at) => places.set(name, {
      name,
      depth,
      x: left + at * (NODE.width + GAP.x),
      y: MARGIN + depth * (NODE.height + GAP.y),
    }));
  });
  const lines = [];
  let lanes = 0;
  for (const node of flow.nodes) {
    for (const { to, labels } of linesOf(node)) {
      const [from, target] = [places.get(node.name), places.get(to)];
      if (!target) continue;
      const label = cut(labels.join(", "), LABEL_CHARS);
      const isForward = target.depth > from.depth;
      const drawn = isForward ? forward(from, target) : back(from, target, MARGIN + inner + ++lanes * LANE);
      lines.push({ from: node.name, to, label, ...drawn });
    }
  }
  return {
    width: 2 * MARGIN + inner + (lanes ? lanes * LANE + 8 : 0),
    height: 2 * MARGIN + rows.length * (NODE.height + GAP.y) - GAP.y,
    nodes: [...places.values()],
    lines,
  };
}

/** The names of the nodes, row by row. Each stands as near to those that lead to it as the row allows. */
function rowsOf({ initial, nodes }) {
  const byName = new Map(nodes.map((node) => [node.name, node]));
  const depths = new Map([[initial, 0]]);
  for (const name of depths.keys()) { // which grows meanwhile
    for (const { to } of byName.get(name)?.edges ?? []) {
      if (byName.has(to) && !depths.has(to)) depths.set(to, depths.get(name) + 1);
    }
  }
  const last = Math.max(...depths.values());
  for (const name of byName.keys()) if (!depths.has(name)) depths.set(name, last + 1);
  const rows = [];
  for (const [name, depth] of depths) (rows[depth] ??= []).push(name);
  const places = new Map();
  for (const row of rows) {
    const weight = (name) => {
      const above = nodes.filter(({ name: from, edges }) => places.has(from) && edges.some(({ to }) => to === name));
      return above.length ? above.reduce((sum, { name: from }) => sum + places.get(from), 0) / above.length : 0;
    };
    const weights = new Map(row.map((name) => [name, weight(name)]));
    row.sort((a, b) => weights.get(a) - weights.get(b));
    row.forEach((name, at) => places.set(name, (at + 0.5) / row.length));
  }
  return rows;
}

function forward(from, to) {
  const [x1, y1] = [from.x + NODE.width / 2, from.y + NODE.height];
  const [x2, y2] = [to.x + NODE.width / 2, to.y];
  const bend = Math.min(GAP.y, (y2 - y1) / 2);
  return {
    path: `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`,
    // Nearer to the target, where lines of one node stand apart.
    x: x1 + (x2 - x1) * 0.66,
    y: y1 + (y2 - y1) * 0.62,
  };
}

/** To a row above, or within one: below its node to a lane of its own at the right, and down from above. */
function back(from, to, lane) {
  const [x1, y1] = [from.x + NODE.width * 0.8, from.y + NODE.height];
  const [x2, y2] = [to.x + NODE.width * 0.8, to.y];
  const [below, above, r] = [y1 + 16, y2 - 16, 8];
  return {
    path: `M${x1} ${y1}V${below - r}Q${x1} ${below} ${x1 + r} ${below}H${lane - r}Q${lane} ${below} ${lane} ${below - r}`
      + `V${above + r}Q${lane} ${above} ${lane - r} ${above}H${x2 + r}Q${x2} ${above} ${x2} ${above + r}V${y2}`,
    x: Math.min(x1 + 34, (x1 + lane) / 2),
    y: below + 4,
  };
}

function cut(text, chars) {
  return text.length > chars ? `${text.slice(0, chars - 1)}…` : text;
}

/** Shows a flow in `box`, and in which node the conversation is. */
export class FlowView {
  #box;
  #nodes = new Map(); // name → {shape, item}
  #at = null;

  constructor(box) {
    this.#box = box;
  }

  /** null: there is none. */
  show(flow) {
    this.#nodes.clear();
    this.#at = null;
    this.#box.replaceChildren();
    this.#box.hidden = flow === null;
    if (flow === null) return;
    const drawn = layout(flow);
    const scroller = make("div", "graph");
    scroller.tabIndex = 0;
    scroller.role = "group";
    scroller.ariaLabel = "Drawing of the flow; the list below says the same";
    scroller.append(this.#draw(drawn, flow));
    const list = make("ol", "nodes");
    list.ariaLabel = "Nodes of the flow";
    list.append(...flow.nodes.map((node) => this.#item(node, flow)));
    this.#box.append(scroller, list);
  }

  /** The conversation is in this node now; null: there is none. */
  move(name) {
    for (const [node, { shape, item }] of this.#nodes) {
      const is = node === name;
      shape.classList.toggle("here", is);
      item.classList.toggle("here", is);
      if (is) item.setAttribute("aria-current", "step");
      else item.removeAttribute("aria-current");
    }
    const now = this.#nodes.get(name);
    if (now && name !== this.#at) {
      now.shape.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
    this.#at = name;
  }

  #draw({ width, height, nodes, lines }, flow) {
    const drawing = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    const arrow = shape("marker", {
      id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse",
    });
    arrow.append(shape("path", { d: "M0 0L8 4L0 8z" }));
    const definitions = shape("defs", {});
    definitions.append(arrow);
    drawing.append(definitions);
    for (const line of lines) {
      drawing.append(shape("path", { class: "way", d: line.path, "marker-end": "url(#arrow)" }));
    }
    for (const line of lines) {
      const label = shape("text", { class: "when", x: line.x, y: line.y });
      label.textContent = line.label;
      drawing.append(label);
    }
    const byName = new Map(flow.nodes.map((node) => [node.name, node]));
    for (const { name, x, y } of nodes) {
      const group = shape("g", { class: "node", transform: `translate(${x} ${y})` });
      const ends = actionsOf(byName.get(name)).filter((words) => !words.startsWith("says"));
      const label = shape("text", { x: NODE.width / 2, y: ends.length ? 18 : 27 });
      label.textContent = cut(name, CHARS);
      const title = shape("title", {});
      title.textContent = [name, byName.get(name).task].filter(Boolean).join(": ");
      group.append(title, shape("rect", { ...NODE, rx: 10 }), label);
      if (ends.length) {
        const end = shape("text", { class: "end", x: NODE.width / 2, y: 34 });
        end.textContent = cut(ends.at(-1), CHARS + 2);
        group.append(end);
      }
      group.classList.toggle("first", name === flow.initial);
      this.#nodes.set(name, { shape: group });
      drawing.append(group);
    }
    return drawing;
  }

  #item(node, flow) {
    const item = make("li");
    item.tabIndex = -1;
    const heading = make("p", "name", node.name);
    if (node.name === flow.initial) heading.append(make("span", "tag", "first"));
    item.append(heading);
    if (node.task) item.append(make("p", "task", node.task));
    for (const words of actionsOf(node)) item.append(make("p", "action", words));
    if (node.collect.length) item.append(make("p", "action", `needs ${node.collect.join(", ")}`));
    const leads = make("ul");
    leads.append(...node.edges.map((edge) => this.#lead(edge)));
    const others = node.functions.filter((name) => !node.edges.some((edge) => edge.function === name));
    if (others.length) leads.append(make("li", "", `${others.join(", ")}: stays here`));
    if (leads.childElementCount) item.append(leads);
    this.#nodes.get(node.name).item = item;
    return item;
  }

  #lead({ function: name, when, to }) {
    const lead = make("li", "", `${name}${when ? `, ${when}` : ""}: `);
    const button = make("button", "to", to);
    button.type = "button";
    button.ariaLabel = `to ${to}`;
    button.addEventListener("click", () => this.#nodes.get(to)?.item.focus());
    lead.append(button);
    return lead;
  }
}

function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.textContent = text;
  if (text) element.dir = "auto";
  return element;
}
