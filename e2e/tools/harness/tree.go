package harness

import (
	"os"
	"path/filepath"
	"strings"
)

// Files returns the contents of the regular files of a volume by path, as a container finds them: links are followed, and
// the names that belong to the volume's own workings, which start with two dots, are left out.
func Files(dir string) (map[string]string, error) {
	files := make(map[string]string)
	return files, collectFiles(dir, "", files)
}

func collectFiles(root, dir string, into map[string]string) error {
	names, err := os.ReadDir(filepath.Join(root, dir))
	if err != nil {
		return err
	}
	for _, name := range names {
		if dir == "" && strings.HasPrefix(name.Name(), "..") {
			continue
		}
		path := filepath.Join(dir, name.Name())
		info, err := os.Stat(filepath.Join(root, path))
		switch {
		case err != nil:
		case info.IsDir():
			err = collectFiles(root, path, into)
		case info.Mode().IsRegular():
			var text []byte
			text, err = os.ReadFile(filepath.Join(root, path))
			into[path] = string(text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
