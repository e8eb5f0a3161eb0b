package simulation

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/refvol/refvol/internal/history"
	"github.com/refvol/refvol/pkg/volume"
)

// An object's values tell of which version they are. Of an object NAME at the version UID/N there are these keys:
//
//	NAME-a        UID/N
//	NAME-b        UID/N $(S1_A) xxx...
//	NAME-t0 or t1 UID/N, by turns
func dataOf(name string, version history.Version, size int) map[string]string {
	text := fmt.Sprint(version.UID, "/", version.N)
	return map[string]string{
		name + "-a": text, name + "-b": text + " $(S1_A) " + strings.Repeat("x", size), fmt.Sprint(name, "-t", version.N%2): text,
	}
}

// parseVersion parses the first word of a value.
func parseVersion(text string) (v history.Version, ok bool) {
	word, _, _ := strings.Cut(text, " ")
	uid, n, ok := strings.Cut(word, "/")
	v.UID = uid
	number, err := strconv.Atoi(n)
	v.N = number
	return v, ok && err == nil && uid != ""
}

// look reads what a directory of a volume shows, through the links that users see.
func (v *simVolume) look(dir string) *history.Seen {
	seen := &history.Seen{Shown: map[string]history.Version{}, Left: []string{}}
	wrong := func(format string, args ...any) { seen.Wrong = append(seen.Wrong, fmt.Sprintf(format, args...)) }
	generation, err := os.Readlink(filepath.Join(dir, "..data"))
	if err != nil {
		wrong("it is empty: %v", err)
		return seen
	}
	seen.Generation = generation
	top, err := os.ReadDir(dir)
	must(err)
	for _, e := range top {
		if e.IsDir() {
			seen.Left = append(seen.Left, e.Name())
		}
	}
	files := map[string]string{}
	entries, err := os.ReadDir(filepath.Join(dir, generation))
	if err != nil {
		wrong("the generation: %v", err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, generation, e.Name()))
		if err != nil {
			wrong("%v", err)
		}
		if len(text) > 0 || !v.inPlace { // an emptied file of InPlace is no file
			files[e.Name()] = string(text)
		}
	}
	for name, found := range v.versionsIn(files, wrong) {
		seen.Shown[name] = found[0]
		if slices.ContainsFunc(found, func(other history.Version) bool { return other != found[0] }) {
			wrong("%s has several versions: %v", name, found)
		}
	}
	return seen
}

// versionsIn returns the versions of each object that the files of one generation show. It calls wrong for a file that has none, or a key
// that is missing.
func (v *simVolume) versionsIn(files map[string]string, wrong func(string, ...any)) map[string][]history.Version {
	found := map[string][]history.Version{}
	add := func(path, name, text string) {
		version, ok := parseVersion(text)
		if !ok {
			wrong("%s: %.60q", path, text)
		}
		found[name] = append(found[name], version)
	}
	for path, text := range files {
		switch name, key, _ := strings.Cut(path, "-"); {
		case path == "app.env":
			for line := range strings.Lines(text) {
				variable, value, _ := strings.Cut(strings.TrimSpace(line), "=")
				name, _, _ := strings.Cut(strings.ToLower(variable), "_")
				add(path, name, strings.Trim(value, `"'`))
			}
		case path == "expanded":
			first, rest, _ := strings.Cut(text, " ")
			add(path, "c1", first)
			add(path, "s1", rest)
		default:
			add(path, name, text)
			version, _ := parseVersion(text)
			if strings.HasPrefix(key, "t") && key != fmt.Sprint("t", version.N%2) {
				wrong("%s belongs to another version than %v", path, version)
			}
			for _, other := range []string{"-a", "-b", fmt.Sprint("-t", version.N%2)} {
				if _, is := files[name+other]; !is {
					wrong("%s%s is missing beside %s", name, other, path)
				}
			}
		}
	}
	return found
}

// sources returns the sources attribute of a volume that shows whole objects.
func sources(w *world, required, optional, canaries []string) string {
	var all []string
	for i, name := range slices.Concat(required, optional, canaries) {
		ref := w.objects[name]
		kind, more := "configMap", ""
		if ref.Kind == volume.Secret {
			kind = "secret"
		}
		if ref.Namespace != namespace {
			more = ", namespace: " + ref.Namespace
		}
		switch {
		case i >= len(required)+len(optional):
			more += ", canary: true"
		case i >= len(required):
			more += ", optional: true"
		}
		all = append(all, fmt.Sprintf("{%s: {name: %s%s}}", kind, name, more))
	}
	return "[" + strings.Join(all, ", ") + "]"
}
