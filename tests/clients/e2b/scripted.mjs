// The same calls with E2B's JavaScript SDK, as its users write them. Prints one JSON object: what each
// call gave. The first argument names the package that holds the release, the second the suite.

const [, , name, suite] = process.argv
const { Sandbox, CommandExitError, NotFoundError, TimeoutError } = await import(name)

const TOLD = {}
const told = (call, value) => { TOLD[call] = value ?? null }
const fails = async (promise) => {
  try { await promise } catch (error) { return error }
  throw new Error('it did not fail')
}
const bytes = (text) => new TextEncoder().encode(text)

async function commands(sandbox) {
  const result = await sandbox.commands.run('echo out; echo err >&2')
  told('run', [result.exitCode, result.stdout, result.stderr])
  let error = await fails(sandbox.commands.run('echo no; exit 7'))
  told('run fails', [error instanceof CommandExitError, error.exitCode, error.stdout])
  let pieces = ''
  await sandbox.commands.run('for n in 1 2 3; do echo $n; done', { onStdout: (piece) => { pieces += piece } })
  told('run with callback', pieces)
  told('envs', (await sandbox.commands.run('echo $A-$B', { envs: { B: '2' } })).stdout)
  told('cwd', (await sandbox.commands.run('pwd', { cwd: '/tmp' })).stdout)
  told('user', (await sandbox.commands.run('whoami', { user: 'user' })).stdout !== '')
  error = await fails(sandbox.commands.run('id', { user: 'root' }))
  told('other user', String(error).includes('runs as its user'))
  error = await fails(sandbox.commands.run('sleep 30', { timeoutMs: 2000 }))
  told('timeout', error instanceof TimeoutError || String(error))
  told('utf-8', (await sandbox.commands.run("printf 'grüße 日本'")).stdout)

  const background = await sandbox.commands.run('echo up; exec sleep 300', { background: true })
  const listed = (await sandbox.commands.list()).filter((each) => each.pid === background.pid)
  told('list', [listed[0].cmd, listed[0].args.at(-1)])
  told('kill', await background.kill())
  told('wait for the killed', (await fails(background.wait())).exitCode)
  told('kill again', await sandbox.commands.kill(background.pid))
  // What was given up ends a moment later.
  let left
  const deadline = Date.now() + 250000
  do {
    left = (await sandbox.commands.list()).map((each) => each.pid)
  } while (left.length && Date.now() < deadline)
  told('list after', left)

  const reading = await sandbox.commands.run('read line; echo $line; cat', { background: true, stdin: true })
  await sandbox.commands.sendStdin(reading.pid, 'one\n')
  await sandbox.commands.sendStdin(reading.pid, 'two\n')
  const again = await sandbox.commands.connect(reading.pid)
  told('connect', again.pid === reading.pid)
  await sandbox.commands.sendStdin(reading.pid, 'three\n')
  if (sandbox.commands.closeStdin) {
    await sandbox.commands.closeStdin(reading.pid)
    told('stdin', (await reading.wait()).stdout)
  } else {
    while (!reading.stdout.includes('three')) await new Promise((resolve) => setTimeout(resolve, 50))
    told('stdin', reading.stdout)
    await reading.kill()
    await fails(reading.wait())
  }
  await again.disconnect()
  error = await fails(sandbox.commands.connect(12345))
  told('connect to nothing', error instanceof NotFoundError)
}

async function terminals(sandbox) {
  let output = ''
  const pty = await sandbox.pty.create({
    rows: 30, cols: 100, cwd: '/tmp', envs: { PS1: '$ ' },
    onData: (data) => { output += new TextDecoder().decode(data) },
  })
  await sandbox.pty.sendInput(pty.pid, bytes('stty size; pwd\n'))
  told('pty resize', await sandbox.pty.resize(pty.pid, { rows: 40, cols: 120 }))
  await sandbox.pty.sendInput(pty.pid, bytes('stty size; exit 0\n'))
  told('pty end', (await pty.wait()).exitCode)
  told('pty', [output.includes('40 120'), output.includes('/tmp')])
}

async function files(sandbox) {
  const made = await sandbox.files.write('notes/a b.txt', 'one\n')
  told('write', [made.name, made.path])
  told('read', await sandbox.files.read('notes/a b.txt'))
  const raw = Uint8Array.from({ length: 256 }, (_, at) => at)
  told('write bytes', (await sandbox.files.write('raw', raw.buffer)).name)
  const back = await sandbox.files.read('raw', { format: 'bytes' })
  told('read bytes', Buffer.from(back).equals(Buffer.from(raw)))
  const big = '0123456789abcdef'.repeat(200000)
  await sandbox.files.write('big', big)
  let streamed = ''
  const decoder = new TextDecoder()
  for await (const part of await sandbox.files.read('big', { format: 'stream' })) streamed += decoder.decode(part)
  told('read stream', streamed === big)
  const many = [{ path: 'many/1', data: '1' }, { path: 'many/2', data: bytes('2').buffer }]
  told('write many', (await sandbox.files.write(many)).map((each) => each.path))
  told('list files', (await sandbox.files.list('many')).map((each) => [each.name, each.type, each.size]))
  const deep = await sandbox.files.list('/workspace/repo', { depth: 2 })
  told('list deep', deep.map((each) => each.path).sort())
  told('exists', [await sandbox.files.exists('many/1'), await sandbox.files.exists('nothing')])
  const info = await sandbox.files.getInfo('many/1')
  told('info', [info.name, info.type, info.size, info.permissions, info.owner])
  told('make', [await sandbox.files.makeDir('deep/er/one'), await sandbox.files.makeDir('deep/er/one')])
  told('rename', (await sandbox.files.rename('many/1', 'moved/one')).path)
  await sandbox.files.remove('moved')
  told('removed', await sandbox.files.exists('moved'))
  told('read nothing', (await fails(sandbox.files.read('nothing'))) instanceof NotFoundError)
  told('list nothing', (await fails(sandbox.files.list('nothing'))) instanceof NotFoundError)
}

async function watches(sandbox) {
  const seen = new Set()
  let stored
  const written = new Promise((resolve) => { stored = resolve })
  const handle = await sandbox.files.watchDir('deep', (event) => {
    seen.add(`${event.name} ${event.type}`)
    if (seen.has('er/new write')) stored()
  }, { recursive: true })
  await sandbox.files.write('deep/er/new', 'x')
  await written
  told('watch', [...seen].sort().join() === 'er/new create,er/new write')
  await handle.stop()
  told('watch nothing', (await fails(sandbox.files.watchDir('nothing', () => {}))) instanceof NotFoundError)
}

async function addresses(sandbox) {
  await sandbox.files.write('shown.txt', 'for everybody')
  const options = { useSignatureExpiration: 60 }
  told('download', await (await fetch(await sandbox.downloadUrl('shown.txt', options))).text())
  const form = new FormData()
  form.append('file', new Blob(['up']), 'x')
  const sent = await fetch(await sandbox.uploadUrl('sent.txt', options), { method: 'POST', body: form })
  told('upload', (await sent.json())[0].name)
  told('uploaded', await sandbox.files.read('sent.txt'))
}

async function life(sandbox) {
  let error
  told('running', await sandbox.isRunning())
  const info = await sandbox.getInfo()
  told('get_info', [info.sandboxId === sandbox.sandboxId, info.templateId, info.metadata])
  await sandbox.setTimeout(1200000)
  told('set_timeout', (await sandbox.getInfo()).endAt > info.endAt)
  const metrics = await sandbox.getMetrics()
  told('metrics', [metrics.length, metrics[0].cpuCount > 0])
  const listed = async (metadata) => (await Sandbox.list({ query: { metadata } }).nextItems()).map((each) => each.sandboxId)
  told('list sandboxes', await listed({ suite }))
  told('list others', await listed({ suite: 'another' }))
  const same = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 600000 })
  told('connected', (await same.commands.run('echo $A')).stdout)
  told('unknown template', String(await fails(Sandbox.create('nothing-like-it'))).includes('no template'))
  told('killed', (await sandbox.kill()) ?? true)
  told('killed again', await Sandbox.kill(sandbox.sandboxId))
  told('runs no more', await sandbox.isRunning())
  error = await fails(same.commands.run('echo'))
  told('nothing runs', /not found|not running/.test(String(error)) || String(error))
}

const sandbox = await Sandbox.create({ timeoutMs: 900000, metadata: { suite }, envs: { A: '1' } })
told('sandbox', sandbox.sandboxId)
try {
  for (const part of [commands, terminals, files, watches, addresses, life]) await part(sandbox)
} finally {
  if (!('killed' in TOLD)) await sandbox.kill()
  console.log(JSON.stringify(TOLD))
}
process.exit(process.exitCode ?? 0)
