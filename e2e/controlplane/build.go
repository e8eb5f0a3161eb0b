package controlplane

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/refvol/refvol/e2e/harness/gobuild"
)

const (
	kubernetesModule = "k8s.io/kubernetes"
	apiServerPackage = "k8s.io/kubernetes/cmd/kube-apiserver"
	etcdPackage      = "./etcd"
)

// Binaries are the absolute paths of the two servers.
type Binaries struct {
	Etcd      string
	APIServer string
}

// BuildOptions says what to build from and where to keep it.
type BuildOptions struct {
	// ModuleDir is the directory of the Go module that requires k8s.io/kubernetes
	// and holds the etcd command. Required.
	ModuleDir string
	// CacheDir keeps the binaries between runs. Required.
	CacheDir string
	// Progress gets a line for each step that takes long; nil discards them.
	Progress io.Writer
}

func (o *BuildOptions) complete() error {
	if o.ModuleDir == "" {
		return errors.New("build the control plane: no module directory")
	}
	if o.CacheDir == "" {
		return errors.New("build the control plane: no cache directory")
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return nil
}

// Build returns etcd and kube-apiserver as the module pins them. They are built
// at the first call, which takes minutes, and come from the cache afterwards.
// Builders of several processes wait for each other; a build that is cut short
// leaves nothing that a later one would take for complete.
func Build(ctx context.Context, o BuildOptions) (Binaries, error) {
	if err := o.complete(); err != nil {
		return Binaries{}, err
	}
	key, err := cacheKey(ctx, o.ModuleDir)
	if err != nil {
		return Binaries{}, fmt.Errorf("key of the control plane's cache: %w", err)
	}
	dir := filepath.Join(o.CacheDir, "controlplane", key)
	if found, ok := lookUp(dir); ok {
		return found, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return Binaries{}, fmt.Errorf("create the control plane's cache: %w", err)
	}
	unlock, err := gobuild.Lock(ctx, filepath.Join(o.CacheDir, "controlplane.lock"), o.Progress)
	if err != nil {
		return Binaries{}, err
	}
	defer unlock()
	if found, ok := lookUp(dir); ok { // somebody else built it in the meantime
		return found, nil
	}
	if err := buildInto(ctx, dir, &o); err != nil {
		return Binaries{}, err
	}
	return binariesIn(dir), nil
}

func binariesIn(dir string) Binaries {
	return Binaries{
		Etcd:      filepath.Join(dir, "etcd"),
		APIServer: filepath.Join(dir, "kube-apiserver"),
	}
}

// lookUp needs to find the directory only: it appears by a rename of a complete one.
func lookUp(dir string) (Binaries, bool) {
	_, err := os.Stat(dir)
	return binariesIn(dir), err == nil
}

// buildInto builds both servers beside dir and renames the result to dir.
func buildInto(ctx context.Context, dir string, o *BuildOptions) error {
	version, err := requiredVersion(ctx, o.ModuleDir, kubernetesModule)
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

	fmt.Fprintf(o.Progress, "building etcd and kube-apiserver %s (about 3 minutes the first time)\n", version)
	err = gobuild.Build(ctx, gobuild.Options{
		Dir:      o.ModuleDir,
		Package:  apiServerPackage,
		Others:   []string{etcdPackage},
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
		return fmt.Errorf("put the built control plane in place: %w", err)
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

// requiredVersion reads one requirement out of go.mod; it needs no network.
func requiredVersion(ctx context.Context, dir, module string) (string, error) {
	out, err := gobuild.Go(ctx, dir, nil, "mod", "edit", "-json")
	if err != nil {
		return "", err
	}
	var mod struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal([]byte(out), &mod); err != nil {
		return "", fmt.Errorf("decode go.mod of %s: %w", dir, err)
	}
	for _, r := range mod.Require {
		if r.Path == module {
			return r.Version, nil
		}
	}
	return "", fmt.Errorf("go.mod of %s does not require %s", dir, module)
}

// cacheKey changes with whatever changes the binaries.
func cacheKey(ctx context.Context, moduleDir string) (string, error) {
	version, err := gobuild.Go(ctx, moduleDir, nil, "env", "GOVERSION")
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %s\n", version, runtime.GOOS, runtime.GOARCH)
	for _, name := range []string{"go.mod", "go.sum", "etcd/main.go"} {
		data, err := os.ReadFile(filepath.Join(moduleDir, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(data), data)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}
