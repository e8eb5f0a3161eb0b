package publisher

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// planted is what somebody put into the state directory, where a record is first written.
func planted(elsewhere string) map[string]func(path string) error {
	return map[string]func(path string) error{
		"link":          func(path string) error { return os.Symlink(elsewhere, path) },
		"relative link": func(path string) error { return os.Symlink("v2.json", path) },
		"hard link":     func(path string) error { return os.Link(elsewhere, path) },
		"pipe":          func(path string) error { return unix.Mkfifo(path, 0o600) },
		"directory":     func(path string) error { return os.Mkdir(path, 0o700) },
	}
}

// A save must neither write to what is there nor wait for it.
func TestARecordIsAlwaysANewFile(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "precious")
	for name, plant := range planted(elsewhere) {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, nil)
			precious := []string{elsewhere, e.recordPath("v2")}
			for _, path := range precious {
				if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := plant(e.recordPath("v1") + tempSuffix); err != nil {
				t.Fatal(err)
			}
			if _, err := e.p.records.save(&record{VolumeID: "v1"}); err != nil {
				t.Error(err)
			}
			e.record("v1")
			for _, path := range precious {
				if text, err := os.ReadFile(path); err != nil || string(text) != "precious" {
					t.Errorf("%s is %q, %v", path, text, err)
				}
			}
		})
	}
}

// A record is written over in its place, unless that is not the file that was made.
func TestARecordIsOverwritten(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "precious")
	for name, tc := range map[string]struct {
		change func(path string) error
		same   bool
	}{
		"as it was":       {func(string) error { return nil }, true},
		"shorter":         {func(path string) error { return os.Truncate(path, 100) }, false},
		"open to others":  {func(path string) error { return os.Chmod(path, 0o644) }, false},
		"known elsewhere": {func(path string) error { return os.Link(path, elsewhere) }, false},
		"a link": {func(path string) error {
			return errors.Join(os.Rename(path, elsewhere), os.Symlink(elsewhere, path))
		}, false},
		"a relative link": {func(path string) error {
			return errors.Join(os.Rename(path, filepath.Dir(path)+"/other"), os.Symlink("other", path))
		}, false},
		"a pipe": {func(path string) error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			_ = os.Remove(elsewhere)
			e := newEnv(t, nil)
			path := e.recordPath("v1")
			save := func(size int64) os.FileInfo {
				t.Helper()
				if _, err := e.p.records.save(&record{VolumeID: "v1", Size: size}); err != nil {
					t.Fatal(err)
				}
				info, err := os.Lstat(path)
				if err != nil || info.Mode() != 0o600 || e.record("v1").Size != size {
					t.Fatalf("the record is %v, %v, with size %d, want %d", info, err, e.record("v1").Size, size)
				}
				return info
			}
			before := save(1)
			if err := tc.change(path); err != nil {
				t.Fatal(err)
			}
			kept, _ := os.ReadFile(elsewhere)
			after := save(1 << 40)
			if same := os.SameFile(before, after); same != tc.same {
				t.Errorf("the same file: %t, want %t", same, tc.same)
			}
			if now, _ := os.ReadFile(elsewhere); string(now) != string(kept) {
				t.Error("what the record's name led to was written to")
			}
		})
	}
}

// TestALargeRecordIsANewFile: what doesn't fit into one piece is not overwritten.
func TestALargeRecordIsANewFile(t *testing.T) {
	e := newEnv(t, nil)
	large := &record{VolumeID: "v1", Attributes: map[string]string{"a": strings.Repeat("x", atomicSize)}}
	var infos []os.FileInfo
	for range 2 {
		if _, err := e.p.records.save(large); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(e.recordPath("v1"))
		if err != nil {
			t.Fatal(err)
		}
		infos = append(infos, info)
	}
	if os.SameFile(infos[0], infos[1]) {
		t.Error("a record of more than a page was overwritten")
	}
}

func TestRemoveTreeFollowsNoLink(t *testing.T) {
	e := newEnv(t, nil)
	elsewhere := t.TempDir()
	if err := os.WriteFile(elsewhere+"/precious", []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	odd := e.recordPath("v1") + "/a\xff/b"
	if err := os.MkdirAll(odd, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, odd+"/link"); err != nil {
		t.Fatal(err)
	}
	if err := e.p.records.remove("v1"); err != nil {
		t.Error(err)
	}
	if left := e.stateFiles(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if _, err := os.Stat(elsewhere + "/precious"); err != nil {
		t.Error(err)
	}
}
