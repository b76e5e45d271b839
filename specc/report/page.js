
"use strict";
(function () {
  // Nodes and lines that belong together are marked together.
  var marked = [];
  function clear() {
    marked.forEach(function (item) { item.classList.remove("marked"); });
    marked = [];
  }
  function mark(identity) {
    var item = document.getElementById(identity);
    if (item) { item.classList.add("marked"); marked.push(item); }
  }
  function show(event) {
    var row = event.target.closest ? event.target.closest("[data-lines], [data-nodes]") : null;
    if (!row) { return; }
    clear();
    mark(row.id);
    (row.dataset.lines || "").split(" ").forEach(function (number) { mark("L" + number); });
    (row.dataset.nodes || "").split(" ").forEach(function (number) { mark("N" + number); });
  }
  ["program", "module"].forEach(function (name) {
    var pane = document.getElementById(name);
    if (pane) { pane.addEventListener("mouseover", show); pane.addEventListener("focusin", show); }
  });
  // A link's target may be in a part that is closed.
  function open() {
    var item = document.getElementById(location.hash.slice(1));
    var target = item;
    while (item) {
      if (item.tagName === "DETAILS") { item.open = true; }
      item = item.parentElement;
    }
    if (target) { target.scrollIntoView({ block: "center" }); }
  }
  window.addEventListener("hashchange", open);
  if (location.hash) { open(); }
})();
