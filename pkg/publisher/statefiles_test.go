package publisher

import (
	"os"
	"path/filepath"
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
