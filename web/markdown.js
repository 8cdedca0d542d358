// The Markdown that models write, as elements. Unknown or broken syntax stays as it was written.
import { h, copy, icon } from "./dom.js";

const INLINE = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*([^*\s](?:[\s\S]*?[^*\s])?)\*\*|\*([^*\s](?:[^*\n]*?[^*\s])?)\*(?!\*)|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)|(https?:\/\/[^\s<>"')\]]*[^\s<>"')\].,;:!?])/;

export function inline(text) {
  const nodes = [];
  for (let match; (match = INLINE.exec(text));) {
    if (match.index > 0) nodes.push(text.slice(0, match.index));
    const [whole, , code, strong, soft, label, target, bare] = match;
    if (code !== undefined) nodes.push(h("code", {}, code.trim() || code));
    else if (strong !== undefined) nodes.push(h("strong", {}, inline(strong)));
    else if (soft !== undefined) nodes.push(h("em", {}, inline(soft)));
    else nodes.push(h("a", { href: target ?? bare, target: "_blank", rel: "noopener noreferrer nofollow" }, label ?? bare));
    text = text.slice(match.index + whole.length);
  }
  if (text) nodes.push(text);
  return nodes;
}

function codeBlock(language, text) {
  const button = h("button.icon.small", { type: "button", title: "Copy", "aria-label": "Copy code" }, icon("copy"));
  button.addEventListener("click", () => copy(text, button));
  return h("figure.code", {}, h("figcaption", {}, h("span", {}, language || "text"), button),
           h("pre", { tabindex: "0" }, h("code", {}, text)));
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
const isTableRule = (line) => line !== undefined && line.includes("-") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(line);
const LIST = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

function tableOf(lines, at) {
  const head = h("tr", {}, cells(lines[at]).map((cell) => h("th", {}, inline(cell))));
  const body = [];
  for (at += 2; at < lines.length && lines[at].includes("|") && lines[at].trim(); ++at)
    body.push(h("tr", {}, cells(lines[at]).map((cell) => h("td", {}, inline(cell)))));
  return [h("div.table", {}, h("table", {}, h("thead", {}, head), h("tbody", {}, body))), at];
}

// Items at one depth; deeper lines are blocks of the item before them.
function listOf(lines, at, depth) {
  const first = LIST.exec(lines[at]);
  const indent = first[1].length;
  const ordered = /\d/.test(first[2]);
  const list = h(ordered ? "ol" : "ul", ordered ? { start: parseInt(first[2], 10) } : {});
  while (at < lines.length) {
    const item = LIST.exec(lines[at]);
    if (!item || item[1].length !== indent || /\d/.test(item[2]) !== ordered) break;
    const inner = [item[3]];
    for (++at; at < lines.length; ++at) {
      const line = lines[at];
      const deeper = line.length - line.trimStart().length > indent;
      if (line.trim() ? !deeper : !(lines[at + 1]?.trim() && lines[at + 1].length - lines[at + 1].trimStart().length > indent)) break;
      inner.push(line.slice(Math.min(line.length - line.trimStart().length, indent + 2)));
    }
    const blocks = depth > 8 ? [inner.join("\n")] : blocksOf(inner, depth + 1);
    list.append(h("li", {}, blocks.length === 1 && blocks[0].tagName === "P" ? [...blocks[0].childNodes] : blocks));
    while (at < lines.length && !lines[at].trim() && LIST.exec(lines[at + 1] ?? "")?.[1].length === indent) ++at;
  }
  return [list, at];
}

function blocksOf(lines, depth = 0) {
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    const line = lines[at];
    const fence = /^\s*(```+|~~~+)\s*([\w+#.-]*)\s*$/.exec(line);
    const heading = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line);
    if (!line.trim()) {
      ++at;
    } else if (fence) {
      const inner = [];
      for (++at; at < lines.length && lines[at].trim() !== fence[1]; ++at) inner.push(lines[at]);
      ++at;
      blocks.push(codeBlock(fence[2], inner.join("\n")));
    } else if (heading) {
      blocks.push(h(`h${Math.min(6, heading[1].length + 2)}`, {}, inline(heading[2])));
      ++at;
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      blocks.push(h("hr"));
      ++at;
    } else if (line.startsWith(">") && depth < 8) {
      const inner = [];
      for (; at < lines.length && lines[at].startsWith(">"); ++at) inner.push(lines[at].replace(/^>\s?/, ""));
      blocks.push(h("blockquote", {}, blocksOf(inner, depth + 1)));
    } else if (LIST.test(line)) {
      const [list, next] = listOf(lines, at, depth);
      blocks.push(list);
      at = next;
    } else if (line.includes("|") && isTableRule(lines[at + 1])) {
      const [table, next] = tableOf(lines, at);
      blocks.push(table);
      at = next;
    } else {
      const inner = [];
      do inner.push(lines[at++]); while (at < lines.length && lines[at].trim() && !/^(\s*(```|~~~)|#{1,6}\s|>)/.test(lines[at]) && !LIST.test(lines[at]));
      const nodes = inner.flatMap((text, i) => (i ? [h("br"), ...inline(text)] : inline(text)));
      blocks.push(h("p", {}, nodes));
    }
  }
  return blocks;
}

export const markdown = (text) => blocksOf(text.split("\n"));
