// Maintenance at a glance: what expiry and garbage collection would do now.

import { getJSON } from "./api.js";
import { go, link } from "./app.js";
import { bytes, h, plural, replace, spinner, when } from "./dom.js";

export async function showMaintenance(context) {
  const { main, params } = context;
  const keep = params.keep || "30";
  const grace = params.grace || "7";
  const field = (label, name, value) => h("label", { class: "field" }, label, h("input", {
    type: "number", min: "0", step: "any", value, "aria-label": label, onchange: (event) => go(link("maintenance", "/", { ...params, [name]: event.target.value })),
  }));
  const place = h("div", null, spinner("Listing objects…"));
  replace(
    main,
    h("section", { class: "panel narrow", "aria-label": "Maintenance" },
      h("h1", null, "Maintenance"),
      h("p", { class: "lead" }, "What a clean-up would do now. The viewer changes nothing."),
      h("div", { class: "controls" }, field("Expire commits older than, in days", "keep", keep), field("Grace period, in days", "grace", grace)),
      place),
  );
  const found = await getJSON("maintenance", { keep_days: keep, grace_days: grace });
  if (!context.isCurrent()) return;
  const { expiry, collection, operations } = found;
  replace(
    place,
    h("div", { class: "cards two" },
      h("div", { class: "card big" }, h("span", { class: "dim" }, "Expiry"), h("strong", null, plural(expiry.expired, "commit")),
        h("span", null, expiry.expired ? `older than ${expiry.older_than_days} days would leave the history; ${expiry.kept} stay.` : `None is older than ${expiry.older_than_days} days or can go; ${expiry.kept} stay.`),
        h("code", null, `icefloe expire REPO --older-than ${expiry.older_than_days}d --dry-run`)),
      h("div", { class: "card big" }, h("span", { class: "dim" }, "Garbage collection"), h("strong", null, bytes(collection.bytes)),
        h("span", null, `of unreferenced objects from before ${when(collection.cutoff)} would be deleted.`),
        h("code", null, `icefloe gc REPO --older-than ${collection.grace_days}d --dry-run`))),
    h("h2", null, "Objects"),
    h("div", { class: "scroll" }, h("table", { class: "values left" },
      h("thead", null, h("tr", null, ["Kind", "In use", "Garbage", "Bytes of garbage", "Too young"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, collection.kinds.map((each) => h("tr", null, h("th", { scope: "row" }, each.kind), [each.in_use, each.garbage, bytes(each.bytes), each.too_young].map((value) => h("td", null, typeof value === "number" ? value.toLocaleString("en") : value))))))),
    h("h2", null, "Latest operations"),
    operations
      ? h("div", { class: "scroll" }, h("table", { class: "values left" }, h("tbody", null, operations.map((each) => h("tr", null, h("th", { scope: "row" }, each.kind), h("td", null, when(each.at)))))))
      : h("p", { class: "dim" }, "Repositories of this generation keep no log of operations."),
    h("p", { class: "dim" }, "A verification reads every file. ", h("code", null, "icefloe verify REPO"), " runs one."),
  );
}
