// tools/docs-versions.sh sets both variables: the tag that is built, and the tags of all releases on the site.
export const version = process.env.SITE_VERSION ?? 'main'
const releases = (process.env.SITE_VERSIONS ?? '').split(' ').filter(Boolean)

const minor = (tag) => tag.replace(/\.\d+$/, '')
// Each link gets the base in front. That of a release ends in /v1.2/. The site of main is above it.
const top = version === 'main' ? '/' : '/../'
const entry = (tag) => ({
  text: minor(tag),
  link: top + (tag === 'main' ? '' : minor(tag) + '/'),
  target: '_self', // so that the browser loads the page: it is none of this site
})

export const menu = releases.length > 0 ? [{ text: `Version: ${minor(version)}`, items: ['main', ...releases].map(entry) }] : []
