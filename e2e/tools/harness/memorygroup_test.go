package harness

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMemoryGroupOfVersion2(t *testing.T) {
	g := &MemoryGroup{dir: t.TempDir(), files: memoryFilesV2()}
	for file, text := range map[string]string{
		"memory.max":     "",
		"memory.current": "4096\n",
		"memory.events":  "low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\n",
	} {
		if err := os.WriteFile(filepath.Join(g.dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := g.Usage(); err != nil || got != 4096 {
		t.Errorf("usage = %d, %v", got, err)
	}
	if got, err := g.Refusals(); err != nil || got != 3 {
		t.Errorf("refusals = %d, %v, want those of the limit", got, err)
	}
	for limit, want := range map[int64]string{1 << 20: "1048576", -1: "max"} {
		if err := g.Limit(limit); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(g.dir, "memory.max")); err != nil || string(got) != want {
			t.Errorf("memory.max = %q, %v, want %q", got, err, want)
		}
	}
}
