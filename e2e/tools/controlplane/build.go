package controlplane

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/refvol/refvol/e2e/tools/gobuild"
)

const kubernetesModule = "k8s.io/kubernetes"

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

// Build returns etcd and kube-apiserver as the module pins them. They are built
// at the first call, which takes minutes, and come from the cache afterwards.
// Builders of several processes wait for each other; a build that is cut short
// leaves nothing that a later one would take for complete.
func Build(ctx context.Context, o BuildOptions) (Binaries, error) {
	dir, err := build(ctx, &o, "controlplane", []string{"etcd/main.go"}, kubernetesModule+"/cmd/kube-apiserver", "./etcd")
	return Binaries{Etcd: filepath.Join(dir, "etcd"), APIServer: filepath.Join(dir, "kube-apiserver")}, err
}

// BuildKubectl returns the path of kubectl in the version of the servers; all that Build
// says of building holds.
func BuildKubectl(ctx context.Context, o BuildOptions) (string, error) {
	dir, err := build(ctx, &o, "kubectl", nil, kubernetesModule+"/cmd/kubectl")
	return filepath.Join(dir, "kubectl"), err
}

// build returns the directory of the cache that holds the programs of some packages, each under the last element of its package's path.
// sources are the files of the module that they are made of, beside go.mod and go.sum.
func build(ctx context.Context, o *BuildOptions, name string, sources []string, packages ...string) (string, error) {
	cache, err := gobuild.CacheDir()
	if err != nil {
		return "", err
	}
	key, err := cacheKey(ctx, o.ModuleDir, append([]string{"go.mod", "go.sum"}, sources...)...)
	if err != nil {
		return "", fmt.Errorf("key of the cache of %s: %w", name, err)
	}
	dir := filepath.Join(cache, name, key)
	if isBuilt(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("create the cache of %s: %w", name, err)
	}
	unlock, err := gobuild.Lock(ctx, filepath.Join(cache, name+".lock"), o.Progress)
	if err != nil {
		return "", err
	}
	defer unlock()
	if isBuilt(dir) { // somebody else built it in the meantime
		return dir, nil
	}
	return dir, buildInto(ctx, dir, o, packages)
}

// isBuilt needs to find the directory only: it appears by a rename of a complete one.
func isBuilt(dir string) bool {
	_, err := os.Stat(dir)
	return err == nil
}

// buildInto builds the programs beside dir and renames the result to dir.
func buildInto(ctx context.Context, dir string, o *BuildOptions, packages []string) error {
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

	fmt.Fprintf(o.Progress, "building %q of Kubernetes %s (minutes the first time)\n", packages, version)
	err = gobuild.Build(ctx, gobuild.Options{
		Dir: o.ModuleDir, Package: packages[0], Others: packages[1:], Out: tmp, LDFlags: ldflags, Progress: o.Progress,
	})
	if err != nil {
		return err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fmt.Errorf("put %q in place: %w", packages, err)
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

// AssetsVariable names the environment variable with the directory of an etcd and a kube-apiserver that are there already,
// as setup-envtest sets it.
const AssetsVariable = "KUBEBUILDER_ASSETS"

// oldestAssets is the oldest kube-apiserver that all tests know how to use.
const oldestAssets = "v1.36.0"

// FromAssets returns the binaries of a directory. It fails if one is missing, or if the API server is too old.
func FromAssets(ctx context.Context, dir string) (Binaries, error) {
	found := Binaries{Etcd: filepath.Join(dir, "etcd"), APIServer: filepath.Join(dir, "kube-apiserver")}
	if _, err := exec.LookPath(found.Etcd); err != nil {
		return Binaries{}, fmt.Errorf("%s: %w", AssetsVariable, err)
	}
	text, err := exec.CommandContext(ctx, found.APIServer, "--version").Output()
	if err != nil {
		return Binaries{}, fmt.Errorf("%s: ask %s for its version: %w", AssetsVariable, found.APIServer, err)
	}
	name := strings.TrimPrefix(strings.TrimSpace(string(text)), "Kubernetes ")
	switch is, err := version.ParseSemantic(name); {
	case err != nil:
		return Binaries{}, fmt.Errorf("%s: the version of %s: %w", AssetsVariable, found.APIServer, err)
	case is.LessThan(version.MustParseSemantic(oldestAssets)):
		return Binaries{}, fmt.Errorf("%s: %s is kube-apiserver %s, and this needs %s or newer: setup-envtest use 1.36.x", AssetsVariable, found.APIServer, name, oldestAssets)
	}
	return found, nil
}
