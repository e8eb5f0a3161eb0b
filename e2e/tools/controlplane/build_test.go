package controlplane

import (
	"os"
	"path/filepath"
	"strings"
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

func TestFailedBuildLeavesNothing(t *testing.T) {
	cache := t.TempDir()
	o := BuildOptions{ModuleDir: moduleLike(t, requiresKubernetes), CacheDir: cache}
	if _, err := Build(t.Context(), o); err == nil {
		t.Fatal("built what is not Go")
	}
	if _, err := BuildKubectl(t.Context(), o); err == nil {
		t.Fatal("built kubectl of a module without it")
	}
	for _, dir := range []string{"controlplane", "kubectl"} {
		left, err := os.ReadDir(filepath.Join(cache, dir))
		if err != nil || len(left) != 0 {
			t.Errorf("left in the cache of %s: %v, %v", dir, left, err)
		}
	}
}

func TestRequiredVersion(t *testing.T) {
	got, err := requiredVersion(t.Context(), moduleLike(t, requiresKubernetes), "go.mod", kubernetesModule)
	if got != "v1.2.3" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := requiredVersion(t.Context(), moduleLike(t, "module m\n"), "go.mod", kubernetesModule); err == nil {
		t.Errorf("of a module that does not require it: %q", got)
	}
}

func TestVersionFlags(t *testing.T) {
	flags, err := versionFlags("v1.36.3")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"component-base/version.gitVersion=v1.36.3", ".gitMajor=1 ", ".gitMinor=36 "} {
		if !strings.Contains(flags, want) {
			t.Errorf("%q is not in %q", want, flags)
		}
	}
	if _, err := versionFlags("v1"); err == nil {
		t.Error("a version of one part is accepted")
	}
}

func TestBuildNeedsItsDirectories(t *testing.T) {
	for _, o := range []BuildOptions{{CacheDir: "x"}, {ModuleDir: "x"}} {
		if _, err := Build(t.Context(), o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
