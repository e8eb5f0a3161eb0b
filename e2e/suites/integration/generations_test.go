package integration

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// object is a ConfigMap or a Secret whose contents tell of themselves to which generation
// they belong. With each generation one key comes, one goes, one changes, and one stays.
type object struct {
	kind, name string
	// padding makes each value longer and has the canary in it.
	padding string
}

func (o *object) key(name string) string { return o.name + "." + name }

func (o *object) value(key string, since int) string {
	return fmt.Sprintf("%s %d\n%s\nend\n", key, since, o.padding)
}

// data returns what the object holds at a generation.
func (o *object) data(generation int) map[string]string {
	data := map[string]string{o.key("manifest"): fmt.Sprintf("%d\n", generation)}
	for key, since := range map[string]int{"stays": 0, "changes": generation, fmt.Sprint("only-", generation): generation} {
		data[o.key(key)] = o.value(o.key(key), since)
	}
	return data
}

// shape is what a volume is made of.
type shape struct {
	name     string
	objects  []*object
	strategy string
}

func (s *shape) attributes() map[string]string {
	var sources strings.Builder
	for _, o := range s.objects {
		fmt.Fprintf(&sources, "- %s: {name: %s}\n", o.kind, o.name)
	}
	return map[string]string{"sources": sources.String(), "defaultMode": "0440", "writeStrategy": s.strategy}
}

const shapeMode = 0o440

// read checks that the directory, a generation of a volume of this shape, holds all of
// one generation of each object and nothing else, and returns which.
func (s *shape) read(dir string) ([]int, error) {
	generations, count := make([]int, len(s.objects)), 0
	for i, o := range s.objects {
		text, err := readFile(filepath.Join(dir, o.key("manifest")))
		if err != nil {
			return nil, err
		}
		if _, err := fmt.Sscanf(text, "%d\n", &generations[i]); err != nil {
			return nil, fmt.Errorf("manifest of %s is torn: %q", o.name, text)
		}
		for key, want := range o.data(generations[i]) {
			count++
			if got, err := readFile(filepath.Join(dir, key)); err != nil {
				return nil, fmt.Errorf("generation %d: %w", generations[i], err)
			} else if got != want {
				return nil, fmt.Errorf("%s holds %q, of generation %d it has to be %q", key, got, generations[i], want)
			}
		}
	}
	names, err := os.ReadDir(dir)
	if err == nil && len(names) != count {
		err = fmt.Errorf("a generation holds %v, and has to hold %d files: %w", names, count, errGone)
	}
	return generations, gone(err)
}

// readFile reads a file, which must have its final mode.
func readFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", gone(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Mode() != shapeMode {
		err = fmt.Errorf("%s has mode %v, want %04o", path, info.Mode(), shapeMode)
	}
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(f)
	return string(text), err
}

// errGone is why something can't be read that should be there.
var errGone = errors.New("not there")

// gone adds errGone to an error that says that something is not there.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESTALE) {
		return fmt.Errorf("%w (%w)", errGone, err)
	}
	return err
}
