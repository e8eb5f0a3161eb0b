package suite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/internal/must"
)

// installer installs the chart by helm itself, with the commands of documents, in a namespace of its own.
type installer struct {
	*namespace
	// shell runs commands with names of the release in the place of the documents', and those that name no namespace in one of its own.
	*shell
	// driver, app and check are names of its own, so that it disturbs no other plugin of the cluster.
	driver, app, check, image string
}

// newInstaller makes ready to install under names that begin with prefix. What is installed when the test ends goes then, after its pods.
func newInstaller(t *testing.T, prefix string) *installer {
	t.Helper()
	s := &installer{
		namespace: newNamespace(t), driver: prefix + ".refvol.dev", app: prefix + "-plugin", check: prefix + "-uninstall-check",
		image: os.Getenv("REFVOL_PLUGIN_IMAGE"),
	}
	registry, rest, _ := strings.Cut(s.image, "/")
	repository, tag, ok := strings.Cut(rest, ":")
	if !ok {
		t.Fatal("REFVOL_PLUGIN_IMAGE must name the plugin's image; make e2e does")
	}
	chart := s.copyChart(os.Getenv("REFVOL_CHART"), prefix)
	t.Cleanup(func() {
		s.searchPlugins()
		if out, err := s.run("helm uninstall refvol --no-hooks --ignore-not-found --wait --timeout 5m --namespace refvol-system"); err != nil {
			t.Errorf("helm uninstall: %v: %s", err, out)
		}
	})
	flags := fmt.Sprintf(" --plugin-namespace=%s --plugin-selector=app.kubernetes.io/name=%s --driver-name=%s", s.name, s.app, s.driver)
	s.shell = newShell(newNamespace(t), "refvol-system", s.name, "daemonset/refvol-plugin", "daemonset/"+s.app,
		"refvol-uninstall-check", s.check, "deploy/charts/refvol", chart,
		"refvol converged", "refvol converged"+flags, "refvol status", "refvol status"+flags,
		"registry=registry.example.com,image.tag=v0.1.0", "registry="+registry+",image.repository="+repository+",image.tag="+tag,
		"image.tag=v0.2.0", "image.tag="+tag+"-newer", "--timeout 60s", "--timeout 10m",
		"helm uninstall refvol", "helm uninstall refvol --timeout 20m")
	return s
}

// copyChart copies the chart under names of its own.
func (s *installer) copyChart(from, prefix string) string {
	s.t.Helper()
	names := strings.NewReplacer(driver, s.driver, "args: [uninstall-check,",
		"args: [uninstall-check, --driver-name="+s.driver+", --plugin-selector=app.kubernetes.io/name="+s.app+",",
		`{{ include "refvol.uninstallCheckImage" . }}`, os.Getenv("REFVOL_GATE_IMAGE"),
		"activeDeadlineSeconds: 240", "activeDeadlineSeconds: 900", // on a slow machine the check may begin late
		"refvol-plugin", s.app, "refvol-uninstall-check", s.check, "refvol-node-identity", prefix+"-node-identity",
		"refvol-live", prefix+"-live", "refvol.dev/live", s.driver+"/live", "refvol-volumes", prefix+"-volumes")
	chart := filepath.Join(s.t.TempDir(), "chart")
	err := filepath.WalkDir(from, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(chart, strings.TrimPrefix(file, from))
		if entry.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		return os.WriteFile(target, []byte(names.Replace(read(s.t, file))), 0o600)
	})
	must.Do(s.t, err)
	return chart
}

// newer is the image that the upgrade brings.
func (s *installer) newer() string { return s.image + "-newer" }

// makeNewer gives the plugin's image another name on every node.
func (s *installer) makeNewer() {
	s.t.Helper()
	for _, node := range s.nodes(s.t) {
		if isCRIO(&node) {
			mustDocker(s.t, "exec", node.Name, "skopeo", "copy", "--quiet", "containers-storage:"+s.image, "containers-storage:"+s.newer())
			continue
		}
		mustDocker(s.t, "exec", node.Name, "ctr", "--namespace=k8s.io", "images", "tag", "--force", s.image, s.newer())
	}
}

// plugins returns the release's pods on the nodes.
func (s *installer) plugins(ctx context.Context) ([]corev1.Pod, error) {
	plugins, err := s.client.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + s.app})
	if err != nil {
		return nil, err
	}
	return plugins.Items, nil
}

// searchPlugins searches the logs of the release's plugins before they go, also while the test cleans up.
func (s *installer) searchPlugins() {
	s.t.Helper()
	plugins, err := s.plugins(context.WithoutCancel(s.t.Context()))
	if err != nil {
		s.t.Error(err)
	}
	for i := range plugins {
		s.searchBefore(&plugins[i])
	}
}

// wantRunning wants a plugin of an image, which reads with its node's rights, on each node that has one.
func (s *installer) wantRunning(image string) {
	s.t.Helper()
	eventually(s.t, podTimeout, "plugins of "+image, func(ctx context.Context) error {
		plugins, err := s.plugins(ctx)
		if err == nil && len(plugins) == 0 {
			err = errors.New("there is none")
		}
		for i := range plugins {
			p, container := &plugins[i], plugins[i].Spec.Containers[0]
			byNode := slices.Contains(container.Args, "--identity=node")
			if p.DeletionTimestamp != nil || !ready(p) || container.Image != image || !byNode {
				err = fmt.Errorf("%s has the image %s and the arguments %q, ready %t", p.Name, container.Image, container.Args, ready(p))
			}
		}
		return err
	})
}

// plugin returns the release's pod on a node.
func (s *installer) plugin(node string) *corev1.Pod {
	s.t.Helper()
	plugins, err := s.plugins(s.t.Context())
	for i := range plugins {
		if plugins[i].Spec.NodeName == node {
			return &plugins[i]
		}
	}
	s.t.Fatalf("%s has no plugin: %v", node, err)
	return nil
}

// refusesUninstall wants helm to refuse a command that uninstalls, and to print why. helm reads the log of the check once, when its last lines
// may be missing, so the command is repeated until it prints all reasons.
func (s *installer) refusesUninstall(command string, reasons ...string) {
	s.t.Helper()
	eventually(s.t, podTimeout, fmt.Sprintf("%s is refused with %q", command, reasons), func(context.Context) error {
		out, err := s.run(command)
		if err == nil {
			s.t.Fatalf("%s is not refused, and prints %s", command, out)
		}
		if !containsAll(out, reasons) {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// wantNothingOn wants nothing of the driver in the cluster, nor on a node: no socket, no registration and no mount. docs/uninstall.md: an
// empty lock file stays, and nothing else.
func (s *installer) wantNothingOn(inspector *pod, node string) {
	s.t.Helper()
	prefix, _, _ := strings.Cut(s.driver, ".")
	eventually(s.t, podTimeout, "nothing of "+s.driver+" in the cluster", func(ctx context.Context) error {
		registration := nodeRoot + registrationsDir + s.driver + "-reg.sock"
		if answer, err := inspector.ask(ctx, "probe", "read", registration); !isAbsent(err) {
			return fmt.Errorf("%s has %q, %w", registration, answer, err)
		}
		entries, err := inspector.entries(ctx, nodeRoot+socketsDir+s.driver)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.Path != "." && (!strings.HasSuffix(e.Path, ".lock") || e.Type != "file" || len(e.Content) > 0) {
				return fmt.Errorf("%s has %+v beside its socket", node, e)
			}
		}
		if found, err := inspector.mounts(ctx, s.driver); err != nil || len(found) > 0 {
			return fmt.Errorf("mounts of %s: %v, %w", node, found, err)
		}
		csiNode, err := s.client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil || isListed(csiNode, s.driver) {
			return fmt.Errorf("the registration on %s: %w", node, err)
		}
		objects, err := s.run("kubectl --namespace refvol-system get --output name csidrivers,clusterroles,clusterrolebindings,serviceaccounts," +
			"validatingadmissionpolicies,validatingadmissionpolicybindings,daemonsets,jobs,pods")
		if found := append(linesWith(objects, "/"+prefix), linesWith(objects, "pod/")...); err != nil || len(found) > 0 {
			return fmt.Errorf("objects %q, %w", found, err)
		}
		return nil
	})
}
