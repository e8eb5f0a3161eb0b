package publisher

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// targets returns the targets with a mount.
func (m *fakeMounts) targets() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.attached))
}

// leftovers returns the directories of file systems that are not attached.
func (m *fakeMounts) leftovers() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		m.t.Error(err)
	}
	var left []string
	for _, entry := range entries {
		dir := filepath.Join(m.dir, entry.Name())
		if !slices.ContainsFunc(slices.Collect(maps.Values(m.attached)), func(f *fakeTmpfs) bool { return f.dir == dir }) {
			left = append(left, entry.Name())
		}
	}
	return left
}

// files returns the content of each file that a reader of the mount at target finds under the names that users see. It returns nil if
// nothing is mounted.
func (m *fakeMounts) files(target string) map[string]string {
	dir := m.directory(target)
	if dir == "" {
		return nil
	}
	return readFiles(m.t, dir)
}

// directory returns where the files of the mount at target are, or "".
func (m *fakeMounts) directory(target string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if fsys := m.attached[target]; fsys != nil {
		return fsys.dir
	}
	return ""
}

// readFiles reads what a volume in dir shows, as a container would.
func readFiles(t testing.TB, dir string) map[string]string {
	shown := map[string]string{}
	data := filepath.Join(dir, "..data")
	if _, err := os.Stat(data); err != nil {
		return shown
	}
	err := fs.WalkDir(os.DirFS(data), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(dir, path)) // by the link that users see
		shown[path] = string(text)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return shown
}

// check fails the test for misuse.
func (m *fakeMounts) check() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, misuse := range m.misuse {
		m.t.Error(misuse)
	}
	for target, fsys := range m.attached {
		if fsys.open != 0 {
			m.t.Errorf("%d handles left open on the mount at %s", fsys.open, target)
		}
	}
}
