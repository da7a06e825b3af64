// The main job with the types that openapi-typescript makes: `node main_job.js URL OWNER`.
// Prints what came of each step, as JSON. `api.ts` is there only in the test.
import createClient from "openapi-fetch";
import type { paths } from "./api.js";

declare const process: { argv: string[] };

const [baseUrl, ownerUserId] = process.argv.slice(2) as [string, string];
const client = createClient<paths>({ baseUrl });
const query = { ownerUserId };

/** Returns the answer's data; a problem is thrown. */
function of<Data>(answer: { data?: Data; error?: unknown }): Data {
  if (answer.data === undefined) throw new Error(JSON.stringify(answer.error));
  return answer.data;
}

const started = of(
  await client.POST("/v1/workspaces", {
    body: {
      ownerUserId,
      registryId: "default",
      repository: "tests/generated",
      tag: "typescript",
      spec: { harness: { id: "shell" } },
    },
  }),
);
const path = { workspaceId: started.workspaceId };

const read = async () =>
  of(await client.GET("/v1/workspaces/{workspaceId}", { params: { path, query } }));
let workspace = await read();
while (workspace.status === "queued" || workspace.status === "running") {
  await new Promise((resume) => setTimeout(resume, 200));
  workspace = await read();
}

const status = workspace.status;
const done = of(
  await client.POST("/v1/workspaces/{workspaceId}/exec", {
    params: { path, query },
    body: { command: "echo $((6 * 7)); exit 3" },
  }),
);
if (typeof done === "string" || !("stdout" in done)) throw new Error("not the end of a command");

const record = of(
  await client.GET("/v1/runs/{runId}/timeline", {
    params: { path: { runId: done.runId }, query },
  }),
);
of(await client.DELETE("/v1/workspaces/{workspaceId}", { params: { path, query } }));
while (workspace.status !== "deleted") {
  await new Promise((resume) => setTimeout(resume, 200));
  workspace = await read();
}
const absent = await client.GET("/v1/workspaces/{workspaceId}", {
  params: { path: { workspaceId: started.sandboxId }, query },
});

console.log(
  JSON.stringify({
    status,
    stdout: done.stdout,
    exitCode: done.exitCode,
    kinds: record.items.map((item) => item.kind),
    remaining: workspace.status,
    absent: absent.error?.code,
  }),
);
