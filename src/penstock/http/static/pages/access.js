// SCRAM users and ACLs.

import { get, path, query } from "../api.js";
import { change } from "../dialog.js";
import { button, h, pill, section } from "../dom.js";
import { PagedTable } from "../table.js";

const RESOURCES = ["topic", "group", "cluster", "transactional-id", "user"];
const OPERATIONS = ["all", "read", "write", "create", "delete", "alter", "describe", "describe-configs", "alter-configs", "cluster-action", "idempotent-write", "two-phase-commit"];

export async function show(view) {
  const users = new PagedTable(
    [
      { title: "user", wide: true, cell: (row) => row.user },
      { title: "mechanism", cell: (row) => row.mechanism },
      { title: "iterations", number: true, cell: (row) => row.iterations },
      { title: "", cell: (row) => [button("password…", () => password(row.user)), " ", button("remove…", () => remove(row.user), { danger: true })] },
    ],
    async (page) => {
      const found = await get(path("users") + query(page));
      return { total: found.total, rows: found.users };
    },
    { key: (row) => `${row.user} ${row.mechanism}`, hint: "search users", empty: "There are no SCRAM users." },
  );
  const acls = new PagedTable(
    [
      { title: "principal", cell: (row) => row.principal },
      { title: "permission", cell: (row) => pill(row.permission, row.permission === "allow" ? "good" : "bad") },
      { title: "operation", cell: (row) => row.operation },
      { title: "resource", cell: (row) => row.resource },
      { title: "name", wide: true, cell: (row) => `${row.name}${row.pattern === "prefixed" ? "…" : ""}` },
      { title: "host", cell: (row) => row.host },
      { title: "", cell: (row) => button("delete…", () => deleteAcl(row), { danger: true }) },
    ],
    async ({ start, limit, search }) => {
      const found = await get(path("acls") + query({ start, limit, principal: search }));
      return { total: found.total, rows: found.acls };
    },
    { key: (row) => JSON.stringify(row), hint: "principal, such as User:ann", empty: "There are no ACLs." },
  );
  users.tools.append(button("Add a user…", () => password(), { primary: true }));
  acls.tools.append(button("Add ACLs…", addAcl, { primary: true }));
  const none = h("p", { class: "calm", hidden: true }, "This cluster has no authorizer, so there are no ACLs: set authorizer.class.name.");
  view.root.append(h("h1", {}, "Users and ACLs"), section("SCRAM users", users.element), section("ACLs", none, acls.element));
  await view.every(4000, () => users.refresh());
  await view.every(4000, async () => {
    try {
      await acls.refresh();
      none.hidden = true;
    } catch (error) {
      if (error.status !== 409) throw error;
      none.hidden = false;
      acls.element.hidden = true;
    }
  });

  async function password(user) {
    await change({
      title: user ? `Set the password of ${user}` : "Add a user",
      says: "The password is salted on this node and stored for SCRAM-SHA-256 and SCRAM-SHA-512.",
      fields: [...(user ? [] : [{ name: "user", label: "Name", required: true }]), { name: "password", label: "Password", kind: "password", required: true }],
      request: ({ user: typed = user, password: secret = "" }) => ({ method: "PUT", where: path("users", typed || "", "password"), body: { password: secret } }),
      action: "Set the password",
    });
    await users.refresh();
  }

  async function remove(user) {
    await change({
      title: `Remove ${user}`,
      says: `User ${user} can't log in with SCRAM any more. Open connections stay.`,
      request: () => ({ method: "DELETE", where: path("users", user), body: {} }),
      action: "Remove the user",
      danger: true,
    });
    await users.refresh();
  }

  async function addAcl() {
    await change({
      title: "Add ACLs",
      says: "The rule applies to new requests at once.",
      fields: [
        { name: "principal", label: "Principal", value: "User:", required: true },
        { name: "permission", label: "Permission", kind: "select", options: ["allow", "deny"], value: "allow" },
        { name: "operation", label: "Operation", kind: "select", options: OPERATIONS, value: "read" },
        { name: "resource", label: "Resource", kind: "select", options: RESOURCES, value: "topic" },
        { name: "name", label: "Name (* for all; not needed for the cluster)" },
        { name: "pattern", label: "The name is", kind: "select", options: ["literal", "prefixed"], value: "literal" },
        { name: "host", label: "Host", value: "*" },
      ],
      request: ({ operation, ...body }) => ({
        method: "POST",
        where: path("acls"),
        body: { ...body, operations: [operation] },
        says: `${body.principal} is ${body.permission === "deny" ? "denied" : "allowed"} ${operation} on ${body.resource} ${body.name || ""}${body.pattern === "prefixed" ? "…" : ""}.`,
      }),
      action: "Add",
    });
    await acls.refresh();
  }

  async function deleteAcl(row) {
    const { operation, ...rest } = row;
    await change({
      title: "Delete an ACL",
      says: `The rule that ${row.permission}s ${row.principal} ${operation} on ${row.resource} ${row.name} is deleted.`,
      request: () => ({ method: "POST", where: path("acls", "delete"), body: { ...rest, operations: [operation] } }),
      action: "Delete the ACL",
      danger: true,
    });
    await acls.refresh();
  }
}
