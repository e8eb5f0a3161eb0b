import fs from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

export const repository = fileURLToPath(new URL('../..', import.meta.url))

// The pages of the site, by what a reader needs: to learn, to do, to look up, to understand. One that isn't written yet
// is left out.
const listed = [
  ['Tutorial', ['docs/getting-started.md', 'Getting started']],
  [
    'How-to: pods',
    ['docs/recipes.md', 'Recipes'],
    ['docs/live-namespaces.md', 'Live namespaces'],
    ['docs/env-files.md', 'Env files'],
    ['docs/apply.md', 'Apply a change'],
    ['docs/rollout.md', 'Staged changes'],
    ['docs/check.md', 'Check a manifest'],
  ],
  [
    'How-to: clusters',
    ['docs/install.md', 'Install'],
    ['docs/operations.md', 'Operate'],
    ['docs/upgrade.md', 'Upgrade and versions'],
    ['docs/uninstall.md', 'Uninstall'],
    ['docs/troubleshooting.md', 'Troubleshooting: messages'],
    ['docs/runbook.md', 'Runbook: alerts'],
  ],
  [
    'Reference',
    ['docs/attributes.md', 'Volume attributes'],
    ['docs/volume-sources.md', 'Volume sources'],
    ['deploy/charts/refvol/README.md', 'Values of the chart', 'chart.md'],
    ['docs/commands.md', 'Commands and flags'],
    ['docs/status.md', 'Status'],
    ['docs/metrics.md', 'Metrics and monitoring'],
    ['docs/limits.md', 'Limits'],
    ['docs/compatibility.md', 'Compatibility and platforms'],
    ['docs/benchmarks.md', 'Benchmarks'],
    ['deploy/examples/README.md', 'Examples', 'examples.md'],
    ['CHANGELOG.md', 'Changelog', 'changelog.md'],
  ],
  [
    'Explanation',
    ['docs/how-it-works.md', 'How it works'],
    ['docs/updates.md', 'Updates'],
    ['docs/reliability.md', 'When something breaks'],
    ['docs/identity.md', 'Identity modes'],
    ['docs/security.md', 'Security'],
    ['docs/scale.md', 'Scale'],
    ['docs/comparison.md', 'Comparison and migration'],
  ],
  [
    'Project',
    ['README.md', 'Read me', 'readme.md'],
    ['ARCHITECTURE.md', 'Architecture', 'architecture.md'],
    ['CONTRIBUTING.md', 'Contributing', 'contributing.md'],
    ['SECURITY.md', 'Report a vulnerability', 'report.md'],
    ['SUPPORT.md', 'Support', 'support.md'],
    ['ROADMAP.md', 'Roadmap', 'roadmap.md'],
    ['GOVERNANCE.md', 'Governance', 'governance.md'],
    ['MAINTAINERS.md', 'Maintainers', 'maintainers.md'],
    ['CODE_OF_CONDUCT.md', 'Code of conduct', 'conduct.md'],
  ],
]

const exists = ([file]) => fs.existsSync(path.join(repository, file))
const groups = listed.map(([text, ...items]) => [text, ...items.filter(exists)])

const address = ([file, , name]) => name ?? file.replace(/^docs\//, '')

// Each file of the repository that is a page, with its place on the site.
export const pages = Object.fromEntries([
  ['site/index.md', 'index.md'],
  ...groups.flatMap(([, ...items]) => items.map((item) => [item[0], address(item)])),
])

// Every other Markdown file of the repository.
export const others = markdown('').filter((file) => !pages[file])

const forgotten = others.filter((file) => path.dirname(file) === 'docs')
if (forgotten.length > 0) throw new Error(`no place in site/.vitepress/pages.mjs: ${forgotten.join(', ')}`)

function markdown(directory) {
  return fs.readdirSync(path.join(repository, directory), { withFileTypes: true }).flatMap((entry) => {
    const name = path.join(directory, entry.name)
    if (entry.isDirectory()) return /^(\..*|bin|node_modules)$/.test(entry.name) ? [] : markdown(name)
    return entry.name.endsWith('.md') ? [name] : []
  })
}

export const sidebar = groups.map(([text, ...items]) => ({
  text,
  collapsed: false,
  items: items.map((item) => ({ text: item[1], link: '/' + address(item).replace(/\.md$/, '') })),
}))
