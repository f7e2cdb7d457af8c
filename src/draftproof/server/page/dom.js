// Make elements. Text always becomes a text node, so nothing that a model writes can be read as HTML.

const SVG = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, children = []) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, children = []) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...[children].flat());
  return made;
}
