package controlplane

import (
	"os"
	"path/filepath"
	"testing"
)

// moduleLike writes the files that the cache's key is made of.
func moduleLike(t *testing.T, goMod string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "etcd"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"go.mod":       goMod,
		"go.sum":       "",
		"etcd/main.go": "package main\n\nfunc main() { not Go }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const requiresKubernetes = "module m\n\ngo 1.26\n\nrequire k8s.io/kubernetes v1.2.3\n"

func TestCacheKeyFollowsWhatIsBuilt(t *testing.T) {
	dir := moduleLike(t, requiresKubernetes)
	keys := make(map[string]string)
	note := func(when string) {
		t.Helper()
		key, err := cacheKey(t.Context(), dir, append([]string{"go.mod", "go.sum"}, servers().sources...)...)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := keys[key]; ok {
			t.Errorf("the key %s is the same as %s", when, other)
		}
		keys[key] = when
	}
	note("at first")
	for _, name := range []string{"go.mod", "go.sum", "etcd/main.go"} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("\n"); err != nil {
			t.Fatal(err)
		}
		f.Close()
		note("after a change of " + name)
	}
}
