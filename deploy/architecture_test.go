package deploy

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/refvol/refvol/internal/must"
)

// repository returns the files and directories that git has, by their paths and by each end of these; and the words of the plugin's Go code,
// without comments and tests, by the name of the file, of which several packages may have one; "" has those of all files.
func repository(t *testing.T) (paths map[string]bool, names map[string]map[string]bool) {
	t.Helper()
	paths, names = map[string]bool{}, map[string]map[string]bool{"": {}}
	code, comment := regexp.MustCompile(`^\.\./(pkg|internal|cmd)/.*\.go$`), regexp.MustCompile(`(?m)^\s*//.*$`)
	word := regexp.MustCompile(`[A-Za-z_]\w*`)
	must.Do(t, filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if entry.IsDir() && slices.Contains([]string{".git", "bin"}, entry.Name()) {
			return fs.SkipDir
		}
		for rest, ok := path, true; ok; {
			_, rest, ok = strings.Cut(rest, "/")
			paths[rest] = true
		}
		if err != nil || !code.MatchString(path) || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		base := filepath.Base(path)
		if names[base] == nil {
			names[base] = map[string]bool{}
		}
		for _, name := range word.FindAllString(comment.ReplaceAllString(string(text), ""), -1) {
			names[base][name], names[""][name] = true, true
		}
		return err
	}))
	return paths, names
}

// TestArchitectureNames: what ARCHITECTURE.md names of the code is there: files, packages, and Go's names, those with a file
// in brackets in that one.
func TestArchitectureNames(t *testing.T) {
	text := documents(t)["ARCHITECTURE.md"]
	paths, names := repository(t)
	name := regexp.MustCompile(`^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$`)
	missing := map[string]bool{}
	for _, got := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(text, -1) {
		word := got[1]
		switch {
		case strings.HasPrefix(word, "trusted."), strings.HasPrefix(word, "security."): // attributes of files
		case strings.ContainsAny(word, " -") && !strings.Contains(word, "/"): // a command, a flag, a component
		case strings.ContainsAny(word, " ") || strings.HasPrefix(word, "--"):
		case paths[strings.TrimSuffix(word, "/")]:
		case !name.MatchString(word) || strings.HasSuffix(word, ".go"):
			if strings.Contains(word, "/") || strings.HasSuffix(word, ".go") {
				missing[word] = true
			}
		case slices.ContainsFunc(strings.Split(word, "."), func(part string) bool { return !names[""][part] }):
			missing[word] = true
		}
	}
	for _, got := range regexp.MustCompile("`([A-Za-z_]\\w*)` \\(((?:`\\w+\\.go`(?:, )?)+)\\)").FindAllStringSubmatch(text, -1) {
		in := false
		for _, file := range strings.Split(strings.ReplaceAll(got[2], "`", ""), ", ") {
			in = in || names[file][got[1]]
		}
		if !in {
			missing[got[1]+" in "+got[2]] = true
		}
	}
	if len(missing) > 0 {
		t.Errorf("ARCHITECTURE.md names what is not there: %q", slices.Sorted(maps.Keys(missing)))
	}
}
