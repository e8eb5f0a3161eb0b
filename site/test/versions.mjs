// Builds the site of a repository with releases. Its documents are a line each: real ones take a minute per release.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import test from 'node:test'
import { fileURLToPath } from 'node:url'
import { pages } from '../.vitepress/pages.mjs'

const repository = fileURLToPath(new URL('../../', import.meta.url))
const clone = fs.mkdtempSync(path.join(os.tmpdir(), 'refvol-docs-'))
const copy = (name) => fs.cpSync(path.join(repository, name), path.join(clone, name), { recursive: true, filter: (file) => path.basename(file) !== 'node_modules' })
const git = (...args) => execFileSync('git', ['-c', 'user.name=test', '-c', 'user.email=test@example.com', ...args], { cwd: clone })

// release writes the documents and tags them.
function release(tag, text = '') {
  for (const page of Object.keys(pages).filter((page) => page !== 'site/index.md')) {
    const title = path.basename(page, '.md').replaceAll('-', ' ').replace(/^./, (first) => first.toUpperCase())
    fs.mkdirSync(path.dirname(path.join(clone, page)), { recursive: true })
    fs.writeFileSync(path.join(clone, page), `# ${title}\n\nsubPath of ${tag}.${text}\n`)
  }
  git('add', '.')
  git('commit', '-qm', tag)
  git('tag', tag)
}

test('each release has its site, and a menu of all', async (t) => {
  t.after(() => fs.rmSync(clone, { recursive: true }))
  git('init', '-q')
  release('v0.1.0')
  git('tag', 'v0.0.9') // without a site
  copy('site')
  copy('tools/docs-versions.sh')
  for (const picture of ['demo', 'propagation']) copy(`docs/${picture}.svg`)
  const front = path.join(clone, 'site/index.md')
  fs.writeFileSync(front, fs.readFileSync(front, 'utf8').replace(/\.md#[\w-]+/g, '.md').replace(/(link: \/\w+)#[\w-]+/g, '$1'))
  for (const tag of ['v0.1.1', 'v0.1.10', 'v0.2.0', 'v0.3.0-rc.1']) release(tag)
  release('v0.4.0', '[no page](missing.md)')
  release('next')
  fs.symlinkSync(path.join(repository, 'site/node_modules'), path.join(clone, 'site/node_modules'))
  // Without the last variable, node's test runner would leave out the tests of a test.
  const env = { ...process.env, SITE_BASE: '/', NODE_TEST_CONTEXT: undefined }
  const run = (...command) => execFileSync(command[0], command.slice(1), { cwd: clone, env, encoding: 'utf8', stdio: 'pipe' })
  run('tools/docs-versions.sh')

  const built = path.join(clone, 'bin/site')
  const versions = { '/': 'next', '/v0.2/': 'v0.2.0', '/v0.1/': 'v0.1.10' }
  assert.deepEqual(fs.readdirSync(built).filter((name) => /^v[0-9.]+$/.test(name)).sort(), ['v0.1', 'v0.2'])
  for (const [base, tag] of Object.entries(versions)) {
    for (const name of fs.readdirSync(built + base).filter((name) => name.endsWith('.html'))) {
      const text = fs.readFileSync(path.join(built, base, name), 'utf8')
      if (name === 'commands.html') assert.ok(text.includes(`subPath of ${tag}.`), `${base} is not ${tag}`)
      const links = [...text.matchAll(/<a [^>]*href="([^"]*)"[^>]*>/g)].map(([link, href]) => ({ link, to: new URL(href, `http://site${base}${name}`) }))
      const menu = links.filter(({ link }) => link.includes('target="_self"')).map(({ to }) => to.pathname)
      assert.deepEqual(menu, name === '404.html' ? [] : Object.keys(versions), `the menu of ${base}${name}`)
      const left = links.filter(({ link, to }) => to.host === 'site' && !link.includes('target="_self"') && !to.pathname.startsWith(base))
      assert.deepEqual(left.map(({ link }) => link), [], `${base}${name} leaves its version`)
    }
    const texts = fs.readdirSync(path.join(built, base, 'assets'), { recursive: true }).filter((name) => name.endsWith('.js')).map((name) => fs.readFileSync(path.join(built, base, 'assets', name), 'utf8'))
    const found = new Set(texts.flatMap((text) => text.match(/subPath of [\w.]+\w/g) ?? []))
    assert.deepEqual([...found], [`subPath of ${tag}`], `what the search of ${base} finds`)
    env.SITE_BASE = base
    run(process.execPath, '--test', '--test-name-pattern=front page|search for subPath', 'site/test/browser.mjs')
  }
})
