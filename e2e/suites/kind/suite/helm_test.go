package suite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// release is an install of the chart by helm itself, in a namespace of its own.
type release struct {
	*namespace
	// driver, app and check are names of its own, so that it disturbs no other plugin of the cluster.
	driver, app, check         string
	program, chart, dir, image string
}

// newRelease makes ready to install under names that begin with prefix. What is installed when the test ends goes then.
func newRelease(t *testing.T, prefix string) *release {
	t.Helper()
	r := &release{
		namespace: newNamespace(t), driver: prefix + ".refvol.dev", app: prefix + "-plugin", check: prefix + "-uninstall-check",
		program: os.Getenv("REFVOL_HELM"), dir: t.TempDir(), image: os.Getenv("REFVOL_PLUGIN_IMAGE"),
	}
	if r.program == "" || r.image == "" {
		t.Fatal("REFVOL_HELM and REFVOL_PLUGIN_IMAGE must name helm and the plugin's image; make e2e does")
	}
	r.chart = r.copyChart(os.Getenv("REFVOL_CHART"), prefix)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := r.helm(ctx, "uninstall", "refvol", "--no-hooks", "--ignore-not-found", "--wait"); err != nil {
			t.Error(err)
		}
	})
	return r
}

// copyChart copies the chart under names of its own.
func (r *release) copyChart(from, prefix string) string {
	r.t.Helper()
	gate := os.Getenv("REFVOL_GATE_IMAGE")
	if gate == "" {
		r.t.Fatal("REFVOL_GATE_IMAGE must name the image of kubectl-refvol; make e2e does")
	}
	names := strings.NewReplacer(driver, r.driver, "args: [uninstall-check,",
		"args: [uninstall-check, --driver-name="+r.driver+", --plugin-selector=app.kubernetes.io/name="+r.app+",",
		`{{ include "refvol.uninstallCheckImage" . }}`, gate,
		"activeDeadlineSeconds: 240", "activeDeadlineSeconds: 900", // on a slow machine the check may begin late
		"refvol-plugin", r.app, "refvol-uninstall-check", r.check, "refvol-node-identity", prefix+"-node-identity",
		"refvol-live", prefix+"-live", "refvol.dev/live", r.driver+"/live", "refvol-volumes", prefix+"-volumes")
	chart := filepath.Join(r.dir, "chart")
	err := filepath.WalkDir(from, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(chart, strings.TrimPrefix(file, from))
		if entry.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return os.WriteFile(target, []byte(names.Replace(string(text))), 0o600)
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return chart
}

// helm runs helm.
func (r *release) helm(ctx context.Context, args ...string) error {
	env := []string{"HOME=" + r.dir, "HELM_DATA_HOME=" + r.dir, "HELM_CONFIG_HOME=" + r.dir, "HELM_CACHE_HOME=" + r.dir, r.program}
	_, err := command(ctx, "env", slices.Concat(env, args, []string{"--namespace=" + r.name, "--timeout=" + rollTimeout.String()})...)
	return err
}

// imageParts returns what the chart's values call the plugin's image.
func (r *release) imageParts() (registry, repository, tag string) {
	registry, rest, _ := strings.Cut(r.image, "/")
	repository, tag, _ = strings.Cut(rest, ":")
	return registry, repository, tag
}

// retag gives the plugin's image another name on every node.
func (r *release) retag(image string) {
	r.t.Helper()
	nodes, err := r.client.CoreV1().Nodes().List(r.t.Context(), metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, node := range nodes.Items {
		if isCRIO(&node) {
			mustDocker(r.t, "exec", node.Name, "skopeo", "copy", "--quiet", "containers-storage:"+r.image, "containers-storage:"+image)
			continue
		}
		mustDocker(r.t, "exec", node.Name, "ctr", "--namespace=k8s.io", "images", "tag", "--force", r.image, image)
	}
}

// wantRunning wants a plugin of an image, with an argument or without it, on each node that has one.
func (r *release) wantRunning(image, arg string, with bool) {
	r.t.Helper()
	eventually(r.t, podTimeout, "plugins of "+image, func(ctx context.Context) error {
		plugins, err := r.client.CoreV1().Pods(r.name).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + r.app})
		if err != nil {
			return err
		}
		if len(plugins.Items) == 0 {
			return errors.New("there is none")
		}
		for i := range plugins.Items {
			p := &plugins.Items[i]
			container := p.Spec.Containers[0]
			if p.DeletionTimestamp != nil || !ready(p) || container.Image != image || strings.Contains(strings.Join(container.Args, " "), arg) != with {
				return fmt.Errorf("%s has the image %s and the arguments %q, ready %t", p.Name, container.Image, container.Args, ready(p))
			}
		}
		return nil
	})
}

// plugin returns the release's pod on a node.
func (r *release) plugin(node string) *corev1.Pod {
	r.t.Helper()
	plugins, err := r.client.CoreV1().Pods(r.name).List(r.t.Context(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=" + r.app, FieldSelector: "spec.nodeName=" + node,
	})
	if err != nil || len(plugins.Items) != 1 {
		r.t.Fatalf("plugin of %s: %v, %v", node, plugins, err)
	}
	return &plugins.Items[0]
}

// wantNothingOn wants nothing of the driver in the cluster, nor on a node: no socket and no registration.
func (r *release) wantNothingOn(inspector *pod, node string, paths nodePaths) {
	r.t.Helper()
	for _, file := range []string{
		path.Join(paths.socket, "csi.sock"), path.Join(path.Dir(paths.pods), "plugins_registry", r.driver+"-reg.sock"),
	} {
		eventually(r.t, podTimeout, "no "+file, func(ctx context.Context) error {
			if answer, err := inspector.ask(ctx, "probe", "read", path.Join(nodeRoot, file)); !isAbsent(err) {
				return fmt.Errorf("it has %q, %w", answer, err)
			}
			return nil
		})
	}
	eventually(r.t, podTimeout, "nothing of "+r.driver+" in the cluster", func(ctx context.Context) error {
		csiNode, err := r.client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, d := range csiNode.Spec.Drivers {
			if d.Name == r.driver {
				return fmt.Errorf("it is registered on %s", node)
			}
		}
		if _, err := r.client.StorageV1().CSIDrivers().Get(ctx, r.driver, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the CSIDriver object: %w", err)
		}
		roles, err := r.client.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name in (" + r.app + ", " + r.check + ")"})
		if err != nil || len(roles.Items) > 0 {
			return fmt.Errorf("ClusterRoles %v, %w", roles.Items, err)
		}
		pods, err := r.client.CoreV1().Pods(r.name).List(ctx, metav1.ListOptions{})
		if err != nil || len(pods.Items) > 0 {
			return fmt.Errorf("pods %v, %w", pods.Items, err)
		}
		return nil
	})
}
