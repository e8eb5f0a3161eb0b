package controlplane

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/refvol/refvol/e2e/tools/gobuild"
)

const (
	kubernetesModule = "k8s.io/kubernetes"
	apiServerPackage = "k8s.io/kubernetes/cmd/kube-apiserver"
	kubectlPackage   = "k8s.io/kubernetes/cmd/kubectl"
	etcdPackage      = "./etcd"
)

// Binaries are the absolute paths of the two servers.
type Binaries struct {
	Etcd      string
	APIServer string
}

// BuildOptions says what to build from. All fields are required.
type BuildOptions struct {
	// ModuleDir is the directory of the Go module that requires k8s.io/kubernetes
	// and holds the etcd command.
	ModuleDir string
	// Progress gets a line for each step that takes long.
	Progress io.Writer
}

// programs are built together and kept in one directory of the cache.
type programs struct {
	// what names them to people, and dir is their part of the cache.
	what, dir string
	// packages are the commands; the last element of each is the program's name.
	packages []string
	// sources are the files of the module that the programs are made of, beside go.mod
	// and go.sum.
	sources []string
	// duration is how long the first build takes, about.
	duration string
}

// Build returns etcd and kube-apiserver as the module pins them. They are built
// at the first call, which takes minutes, and come from the cache afterwards.
// Builders of several processes wait for each other; a build that is cut short
// leaves nothing that a later one would take for complete.
func Build(ctx context.Context, o BuildOptions) (Binaries, error) {
	dir, err := build(ctx, o, programs{
		what: "etcd and kube-apiserver", dir: "controlplane", duration: "3 minutes",
		packages: []string{apiServerPackage, etcdPackage}, sources: []string{"etcd/main.go"},
	})
	if err != nil {
		return Binaries{}, err
	}
	return Binaries{
		Etcd:      filepath.Join(dir, "etcd"),
		APIServer: filepath.Join(dir, "kube-apiserver"),
	}, nil
}

// BuildKubectl returns the path of kubectl in the version of the servers; all that Build
// says of building holds.
func BuildKubectl(ctx context.Context, o BuildOptions) (string, error) {
	dir, err := build(ctx, o, programs{
		what: "kubectl", dir: "kubectl", duration: "a minute", packages: []string{kubectlPackage},
	})
	return filepath.Join(dir, "kubectl"), err
}

// build returns the directory that holds the programs.
func build(ctx context.Context, o BuildOptions, p programs) (string, error) {
	cache, err := gobuild.CacheDir()
	if err != nil {
		return "", err
	}
	key, err := cacheKey(ctx, o.ModuleDir, append([]string{"go.mod", "go.sum"}, p.sources...)...)
	if err != nil {
		return "", fmt.Errorf("key of the cache of %s: %w", p.what, err)
	}
	dir := filepath.Join(cache, p.dir, key)
	if isBuilt(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("create the cache of %s: %w", p.what, err)
	}
	unlock, err := gobuild.Lock(ctx, filepath.Join(cache, p.dir+".lock"), o.Progress)
	if err != nil {
		return "", err
	}
	defer unlock()
	if isBuilt(dir) { // somebody else built it in the meantime
		return dir, nil
	}
	return dir, buildInto(ctx, dir, &o, p)
}

// isBuilt needs to find the directory only: it appears by a rename of a complete one.
func isBuilt(dir string) bool {
	_, err := os.Stat(dir)
	return err == nil
}

// buildInto builds the programs beside dir and renames the result to dir.
func buildInto(ctx context.Context, dir string, o *BuildOptions, p programs) error {
	version, err := gobuild.Go(ctx, o.ModuleDir, nil, "list", "-m", "-f", "{{.Version}}", kubernetesModule)
	if err != nil {
		return err
	}
	ldflags, err := versionFlags(version)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "building-")
	if err != nil {
		return fmt.Errorf("create a build directory: %w", err)
	}
	defer os.RemoveAll(tmp)

	fmt.Fprintf(o.Progress, "building %s %s (about %s the first time)\n", p.what, version, p.duration)
	err = gobuild.Build(ctx, gobuild.Options{
		Dir:      o.ModuleDir,
		Package:  p.packages[0],
		Others:   p.packages[1:],
		Out:      tmp,
		LDFlags:  ldflags,
		Progress: o.Progress,
	})
	if err != nil {
		return err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fmt.Errorf("put %s in place: %w", p.what, err)
	}
	return nil
}

// versionFlags are the linker flags that make the server report the version of the
// module it was built from.
func versionFlags(version string) (string, error) {
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(parts) < 3 {
		return "", fmt.Errorf("version %q of %s has not three parts", version, kubernetesModule)
	}
	flags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags = append(flags,
			"-X", pkg+".gitVersion="+version,
			"-X", pkg+".gitMajor="+parts[0],
			"-X", pkg+".gitMinor="+parts[1],
			"-X", pkg+".gitTreeState=clean")
	}
	return strings.Join(flags, " "), nil
}

// cacheKey changes with whatever changes the binaries; files are those of the module that they are
// made of.
func cacheKey(ctx context.Context, moduleDir string, files ...string) (string, error) {
	version, err := gobuild.Go(ctx, moduleDir, nil, "env", "GOVERSION")
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %s\n", version, runtime.GOOS, runtime.GOARCH)
	for _, name := range files {
		data, err := os.ReadFile(filepath.Join(moduleDir, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(data), data)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}
