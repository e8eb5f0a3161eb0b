package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Pruned returns nil once a volume holds nothing but its files and the present generation: nothing of interrupted writes, nor what was kept
// for readers.
func Pruned(target string) error {
	names, err := filepath.Glob(filepath.Join(target, "..*"))
	if err == nil && (len(names) != 2 || filepath.Base(names[1]) != "..data") {
		err = fmt.Errorf("%q are there beside the files, want one generation and ..data", names)
	}
	return err
}

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
