"use strict";
// The grid of packs of report.html: sorts, filters and searches them. Text is set as text, never as markup.
(() => {
  const at = (name) => document.getElementById("packs-" + name);
  if (!at("data")) return;
  const data = JSON.parse(at("data").textContent), SHOWN = 40;
  const packs = data.packs.map(([number, medium, trained, cost, flat, ids]) => {
    const members = [];
    for (let i = 0; i < flat.length; i += 3) members.push(flat.slice(i, i + 3));
    const tokens = members.reduce((sum, member) => sum + member[0], 0);
    return {number, medium: data.media[medium], cost, members: members.length, list: members, tokens,
      fill: 100 * tokens / data.most, trained: 100 * trained / Math.max(1, tokens), ids: ids ? ids.split("\n") : []};
  });

  const made = (name, text, kind) => {
    const element = document.createElement(name);
    if (text) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };

  const strip = (pack) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), total = Math.max(data.most, pack.tokens);
    svg.setAttribute("viewBox", `0 0 ${total} 1`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("height", "14");
    let from = 0;
    const add = (kind, size) => {
      if (size <= 0) return;
      const rect = document.createElementNS(svg.namespaceURI, "rect");
      rect.setAttribute("x", from);
      rect.setAttribute("width", size);
      rect.setAttribute("height", 1);
      rect.setAttribute("class", "of-" + kind);
      svg.append(rect);
      from += size;
    };
    pack.list.forEach(([tokens, visual, kind], number) => {
      const odd = number % 2 ? " odd" : "";
      add(data.media[kind] + odd, visual);
      add("text" + odd, tokens - visual);
    });
    add("padding", total - pack.tokens);
    const box = made("div", "", "strip");
    box.append(svg);
    return box;
  };

  const row = (pack, searched) => {
    const box = made("details", "", "pack-row"), head = made("summary"), s = pack.members === 1 ? "" : "s";
    head.append(made("span", `${pack.number.toLocaleString("en")} · ${pack.fill.toFixed(1)}% full · ` +
      `${pack.trained.toFixed(0)}% trained on · cost ${pack.cost.toFixed(2)} · ${pack.members} member${s}`), strip(pack));
    box.append(head);
    box.addEventListener("toggle", () => {
      if (box.childElementCount > 1) return;
      if (data.command) box.append(made("pre", `${data.command} ${pack.number}`));
      const list = made("ol");
      pack.list.forEach(([tokens, visual, kind], number) => {
        const name = pack.ids[number] || data.media[kind];
        const text = `${name}: ${tokens.toLocaleString("en")} tokens` + (visual ? `, ${visual.toLocaleString("en")} visual` : "");
        list.append(made("li", text, searched && name.includes(searched) ? "good" : ""));
      });
      box.append(list);
    });
    return box;
  };

  let shown = SHOWN;
  const show = () => {
    const by = at("by").value, text = at("search") ? at("search").value.trim() : "";
    const medium = at("medium") ? at("medium").value : "", sign = at("falling").checked ? -1 : 1;
    const bound = (name, none) => at(name).value === "" ? none : Number(at(name).value);
    const least = bound("least", -Infinity), most = bound("most", Infinity);
    const found = packs.filter((pack) => pack[by] >= least && pack[by] <= most && (!medium || pack.medium === medium) &&
      (!text || pack.ids.some((name) => name.includes(text))));
    found.sort((a, b) => sign * (a[by] - b[by]) || a.number - b.number);
    const rows = found.slice(0, shown).map((pack) => row(pack, text));
    if (found.length > shown) {
      const more = made("button", `${(found.length - shown).toLocaleString("en")} more`);
      more.addEventListener("click", () => { shown += SHOWN; show(); });
      rows.push(more);
    }
    at("list").replaceChildren(...rows);
    at("told").textContent = `${found.length.toLocaleString("en")} of ${packs.length.toLocaleString("en")} packs`;
  };

  for (const name of ["by", "least", "most", "falling", "medium", "search"]) {
    if (at(name)) at(name).addEventListener("input", () => { shown = SHOWN; show(); });
  }
  at("controls").hidden = false;
  show();
})();
