package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/gobuild"
)

const rootModule = "module github.com/refvol/refvol\n"

// Repository returns the root directory of the checkout that the working directory is in.
func Repository() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(data), rootModule) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is not inside a checkout of refvol", start)
		}
	}
}

// BuildControlPlane returns the etcd and the API server that KUBEBUILDER_ASSETS names. Without it, it builds them if
// they are missing, which takes minutes the first time; progress gets a line now and then.
func BuildControlPlane(ctx context.Context, progress io.Writer) (controlplane.Binaries, error) {
	if dir := os.Getenv(controlplane.AssetsVariable); dir != "" {
		fmt.Fprintf(progress, "etcd and kube-apiserver are those of %s=%s\n", controlplane.AssetsVariable, dir)
		return controlplane.FromAssets(ctx, dir)
	}
	o, err := kubernetesBuild(progress)
	if err != nil {
		return controlplane.Binaries{}, err
	}
	return controlplane.Build(ctx, o)
}

// BuildKubectl builds kubectl if it is missing, as BuildControlPlane does the servers, and returns its path.
func BuildKubectl(ctx context.Context, progress io.Writer) (string, error) {
	o, err := kubernetesBuild(progress)
	if err != nil {
		return "", err
	}
	return controlplane.BuildKubectl(ctx, o)
}

// kubernetesBuild says what programs of Kubernetes are built from.
func kubernetesBuild(progress io.Writer) (controlplane.BuildOptions, error) {
	repo, err := Repository()
	return controlplane.BuildOptions{ModuleDir: filepath.Join(repo, "e2e", "node-image", "kubernetes"), Progress: progress}, err
}

// On a machine without the go tool, these name what StartControlPlane attaches to, and what BuildPlugin copies.
const (
	KubeconfigVariable = "REFVOL_TEST_KUBECONFIG"
	PluginVariable     = "REFVOL_TEST_PLUGIN"
	EtcdVariable       = "REFVOL_TEST_ETCD"
	// EmulatedVariable says that the processors are emulated, and those of the API server are not.
	EmulatedVariable = "REFVOL_TEST_EMULATED"
)

// StartControlPlane builds what is missing and starts a control plane, or attaches to the one of KubeconfigVariable.
func StartControlPlane(ctx context.Context, progress io.Writer) (*controlplane.ControlPlane, error) {
	if kubeconfig := os.Getenv(KubeconfigVariable); kubeconfig != "" {
		return controlplane.Attach(kubeconfig, os.Getenv(EtcdVariable))
	}
	binaries, err := BuildControlPlane(ctx, progress)
	if err != nil {
		return nil, err
	}
	return controlplane.Start(ctx, controlplane.Options{Binaries: binaries})
}

// BuildPlugin builds the plugin and puts a copy of it into dir, which it returns the path of. With race the binary
// has the race detector in it, which needs a C compiler. PluginVariable names a binary to take instead, as it is.
func BuildPlugin(ctx context.Context, dir string, race bool, progress io.Writer) (string, error) {
	o := gobuild.Options{Package: "./cmd/refvol-plugin", Race: race, Progress: progress}
	if binary := os.Getenv(PluginVariable); binary != "" {
		return copyProgram(binary, filepath.Join(dir, raced("refvol-plugin", race)))
	}
	if !race {
		o.Tags = "grpcnotrace" // as the Makefile does for a release
	}
	return build(ctx, o, "plugin", raced("refvol-plugin", race), dir)
}

// BuildNotify builds refvol-notify, as BuildPlugin does the plugin, and returns the path of a copy in dir.
func BuildNotify(ctx context.Context, dir string, progress io.Writer) (string, error) {
	o := gobuild.Options{Dir: ".", Package: "./cmd/refvol-notify", Progress: progress}
	return build(ctx, o, "notify", "refvol-notify", dir)
}

// BuildKubectlRefvol builds kubectl-refvol, as BuildPlugin does the plugin, and returns the path of a copy in dir.
func BuildKubectlRefvol(ctx context.Context, dir string, progress io.Writer) (string, error) {
	o := gobuild.Options{Dir: "cmd/kubectl-refvol", Package: ".", Progress: progress}
	return build(ctx, o, "kubectl-refvol", "kubectl-refvol", dir)
}

func raced(name string, race bool) string {
	if race {
		return name + "-race"
	}
	return name
}

// BuildHelm builds helm, as BuildPlugin does the plugin, and returns the path of a copy in dir.
func BuildHelm(ctx context.Context, dir string, progress io.Writer) (string, error) {
	o := gobuild.Options{Dir: "e2e/tools/helm", Package: "helm.sh/helm/v4/cmd/helm", LDFlags: "-s -w", Progress: progress}
	return build(ctx, o, "helm", "helm", dir)
}

// build builds a program, whose Dir is below the root of the checkout, and returns the path of a copy in dir. The go
// tool leaves an up-to-date binary alone, which saves the seconds of linking it; so it builds into the cache, under a
// lock, and the copy is what nobody else can replace during the run.
func build(ctx context.Context, o gobuild.Options, cached, name, dir string) (string, error) {
	repo, err := Repository()
	if err != nil {
		return "", err
	}
	cache, err := gobuild.CacheDir()
	if err != nil {
		return "", err
	}
	o.Dir, o.Out = filepath.Join(repo, o.Dir), filepath.Join(cache, cached, name)
	if err := os.MkdirAll(filepath.Dir(o.Out), 0o755); err != nil {
		return "", err
	}
	unlock, err := gobuild.Lock(ctx, o.Out+".lock", o.Progress)
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := gobuild.Build(ctx, o); err != nil {
		return "", err
	}
	return copyProgram(o.Out, filepath.Join(dir, name))
}

func copyProgram(from, to string) (string, error) {
	program, err := os.ReadFile(from)
	if err != nil {
		return "", err
	}
	return to, os.WriteFile(to, program, 0o755)
}

// Lab is what plugins are started with: a control plane, the program, and a kubeconfig with the rights of deploy/base and
// no others. Dir is for all that the caller makes.
type Lab struct {
	*controlplane.ControlPlane
	Dir, Plugin, Kubeconfig string
}

// StartLab starts a control plane and builds the plugin, with the race detector in it if race is set. The caller stops
// the Lab.
func StartLab(ctx context.Context, race bool, progress io.Writer) (l *Lab, err error) {
	l = &Lab{}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Stop())
		}
	}()
	if l.Dir, err = os.MkdirTemp("", "refvol-lab-"); err != nil {
		return l, err
	}
	if l.ControlPlane, err = StartControlPlane(ctx, progress); err != nil {
		return l, err
	}
	if l.Plugin, err = BuildPlugin(ctx, l.Dir, race, progress); err != nil {
		return l, err
	}
	l.Kubeconfig = filepath.Join(l.Dir, "plugin.kubeconfig")
	_, err = GrantPlugin(ctx, l.ControlPlane, l.Kubeconfig)
	return l, err
}

// Stop ends the control plane and removes the directory.
func (l *Lab) Stop() error {
	var err error
	if l.ControlPlane != nil {
		err = l.ControlPlane.Stop()
	}
	return errors.Join(err, os.RemoveAll(l.Dir))
}
