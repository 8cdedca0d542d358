// Elements are made, never parsed from text: what a model writes can only ever become text nodes.

export const $ = (id) => document.getElementById(id);

/** h("p.note", {title: "x", onclick: f}, "text", child) */
export function h(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export const icon = (name) => svg("svg", { "aria-hidden": "true" }, svg("use", { href: `#i-${name}` }));

export function button(name, label, action) {
  return h("button.icon.small", { type: "button", title: label, "aria-label": label, onclick: action }, icon(name));
}

let toastTimer = 0;
export function toast(text) {
  const box = $("toast");
  box.textContent = text;
  box.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { box.hidden = true; }, 6000);
}

export async function copy(text, from) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // plain HTTP on another host has no clipboard API
    const area = h("textarea.offscreen", {});
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  from.replaceChildren(icon("check"));
  setTimeout(() => from.replaceChildren(icon("copy")), 1200);
}
