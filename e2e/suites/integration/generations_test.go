package integration

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// object is a ConfigMap or a Secret whose contents tell of themselves to which generation
// they belong. With each generation one key comes, one goes, one changes, and one stays.
type object struct {
	kind, name string
	// mapped says that the volume has items for the keys; these then go to directories,
	// and the same two keys come and go by turns.
	mapped bool
	// padding makes each value longer and has the canary in it.
	padding string
}

func (o *object) key(name string) string { return o.name + "." + name }

// passing is the key that only this generation has.
func (o *object) passing(generation int) string {
	if o.mapped {
		return o.key([]string{"even", "odd"}[generation%2])
	}
	return o.key(fmt.Sprint("only-", generation))
}

// since returns the generation from which on the object has had the key as it has it at
// the given one, for each of its keys but the manifest.
func (o *object) since(generation int) map[string]int {
	return map[string]int{
		o.key("stays"):        0,
		o.key("changes"):      generation,
		o.passing(generation): generation,
	}
}

func (o *object) value(key string, since int) string {
	return fmt.Sprintf("%s %d\n%s\nend\n", key, since, o.padding)
}

// data returns what the object holds at a generation.
func (o *object) data(generation int) map[string]string {
	data := map[string]string{o.key("manifest"): fmt.Sprintf("%d\n", generation)}
	for key, since := range o.since(generation) {
		data[key] = o.value(key, since)
	}
	return data
}

// path returns where the volume shows a key.
func (o *object) path(key string) string {
	if !o.mapped {
		return key
	}
	_, name, _ := strings.Cut(key, ".")
	return filepath.Join(o.name+".d", name+".d", key)
}

// source returns the object as an entry of the volume's sources.
func (o *object) source() string {
	if !o.mapped {
		return fmt.Sprintf("- %s: {name: %s}\n", o.kind, o.name)
	}
	var items []string
	for _, name := range []string{"manifest", "stays", "changes", "even", "odd"} {
		items = append(items, fmt.Sprintf("{key: %s, path: %s}", o.key(name), o.path(o.key(name))))
	}
	// Optional, as it never has all of the keys.
	return fmt.Sprintf("- %s: {name: %s, optional: true, items: [%s]}\n", o.kind, o.name, strings.Join(items, ", "))
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
		sources.WriteString(o.source())
	}
	return map[string]string{"sources": sources.String(), "defaultMode": "0440", "writeStrategy": s.strategy}
}

const shapeMode = 0o440

// read checks that the directory, a generation of a volume of this shape, holds all of
// one generation of each object and nothing else, and returns which.
func (s *shape) read(dir int) ([]int, error) {
	names := map[string]bool{}
	generations := make([]int, len(s.objects))
	for i, o := range s.objects {
		text, err := readAt(dir, o.path(o.key("manifest")))
		if err != nil {
			return nil, err
		}
		if _, err := fmt.Sscanf(text, "%d\n", &generations[i]); err != nil {
			return nil, fmt.Errorf("manifest of %s is torn: %q", o.name, text)
		}
		for key, want := range o.data(generations[i]) {
			path := o.path(key)
			names[path[:strings.IndexByte(path+"/", '/')]] = true
			if got, err := readAt(dir, path); err != nil {
				return nil, fmt.Errorf("generation %d: %w", generations[i], err)
			} else if got != want {
				return nil, fmt.Errorf("%s holds %q, of generation %d it has to be %q", path, got, generations[i], want)
			}
		}
	}
	return generations, s.onlyThese(dir, names)
}

// onlyThese checks that nothing but these names is in a generation.
func (s *shape) onlyThese(dir int, names map[string]bool) error {
	got, err := namesAt(dir)
	if err != nil {
		return err
	}
	slices.Sort(got)
	if want := slices.Sorted(maps.Keys(names)); !slices.Equal(got, want) {
		return fmt.Errorf("a generation holds %v, and has to hold %v: %w", got, want, errGone)
	}
	return nil
}

// namesAt lists a directory.
func namesAt(dir int) ([]string, error) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, gone("open the directory", err)
	}
	defer unix.Close(fd)
	var names []string
	buf := make([]byte, 8<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			return nil, gone("list the directory", err)
		}
		if n == 0 {
			return names, nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// readAt reads a file, which must have its final mode, by its path below a directory.
func readAt(dir int, path string) (string, error) {
	fd, err := unix.Openat(dir, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", gone("open "+path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", fmt.Errorf("stat %s: %w", path, err)
	}
	if mode := st.Mode & 0o7777; mode != shapeMode {
		return "", fmt.Errorf("%s has mode %04o, want %04o", path, mode, shapeMode)
	}
	var text []byte
	buf := make([]byte, 16<<10)
	for {
		n, err := unix.Read(fd, buf)
		if err != nil {
			return "", fmt.Errorf("read %s: %w", path, err)
		}
		if n == 0 {
			return string(text), nil
		}
		text = append(text, buf[:n]...)
	}
}
