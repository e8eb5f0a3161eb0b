package suite

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/internal/must"
)

// namespace is where one test has its objects.
type namespace struct {
	*cluster
	t    *testing.T
	name string
}

// newNamespace makes a namespace for the test. When the test ends it goes, with all
// its pods; if the test failed, what explains it is logged before.
func newNamespace(t *testing.T) *namespace {
	t.Helper()
	c := connect(t)
	created, err := c.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "refvol-e2e-",
			// Some pods look at their node.
			Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"},
		},
	}, metav1.CreateOptions{})
	must.Do(t, err)
	n := &namespace{cluster: c, t: t, name: created.Name}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), podTimeout)
		defer cancel()
		n.searchNamespace(ctx)
		if t.Failed() {
			n.explain(ctx)
		}
		ctx, cancel = context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		n.remove(ctx)
	})
	// A pod that is created before the account that it gets would be refused.
	eventually(t, podTimeout, "default service account", func(ctx context.Context) error {
		_, err := n.client.CoreV1().ServiceAccounts(n.name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return n
}

// remove deletes the namespace and waits until its pods are gone, so that the next
// test finds none of their volumes.
func (n *namespace) remove(ctx context.Context) {
	if err := n.client.CoreV1().Namespaces().Delete(ctx, n.name, metav1.DeleteOptions{}); err != nil {
		n.t.Errorf("delete namespace %s: %v", n.name, err)
		return
	}
	err := poll(ctx, func(ctx context.Context) error {
		_, err := n.client.CoreV1().Namespaces().Get(ctx, n.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("namespace %s is still there", n.name)
	})
	if err != nil {
		n.t.Errorf("delete namespace %s: %v", n.name, err)
	}
}

// The kinds of object that a volume shows.
const (
	kindConfigMap = "ConfigMap"
	kindSecret    = "Secret"
)

// contents is what a ConfigMap or a Secret holds. A Secret holds all of it in `data`.
type contents struct {
	text, annotations map[string]string
	binary            map[string][]byte
	immutable         bool
}

// object has the data of a ConfigMap or a Secret, by key.
type object map[string]string

// setConfigMap makes a ConfigMap have just this data, and setSecret a Secret.
func (n *namespace) setConfigMap(name string, data object) {
	n.t.Helper()
	n.put(kindConfigMap, name, contents{text: data})
}

func (n *namespace) setSecret(name string, data object) {
	n.t.Helper()
	n.put(kindSecret, name, contents{text: data})
}

// patchConfigMap changes what a merge patch has, and nothing else of a ConfigMap.
func (n *namespace) patchConfigMap(name, patch string) {
	n.t.Helper()
	n.kubectl("patch", "configmap", name, "--type=merge", "--patch="+patch)
}

// put makes the object hold just the contents, and creates it if it is missing.
func (n *namespace) put(kind, name string, c contents) {
	n.t.Helper()
	var err error
	if ctx := n.t.Context(); kind == kindSecret {
		secrets := n.client.CoreV1().Secrets(n.name)
		if _, err = secrets.Update(ctx, c.secret(name), metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
			_, err = secrets.Create(ctx, c.secret(name), metav1.CreateOptions{})
		}
	} else {
		configMaps := n.client.CoreV1().ConfigMaps(n.name)
		if _, err = configMaps.Update(ctx, c.configMap(name), metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
			_, err = configMaps.Create(ctx, c.configMap(name), metav1.CreateOptions{})
		}
	}
	if err != nil {
		n.t.Fatalf("%s %s: %v", kind, name, err)
	}
}

// drop deletes the object.
func (n *namespace) drop(kind, name string) {
	n.t.Helper()
	var err error
	if kind == kindSecret {
		err = n.client.CoreV1().Secrets(n.name).Delete(n.t.Context(), name, metav1.DeleteOptions{})
	} else {
		err = n.client.CoreV1().ConfigMaps(n.name).Delete(n.t.Context(), name, metav1.DeleteOptions{})
	}
	if err != nil {
		n.t.Fatalf("%s %s: %v", kind, name, err)
	}
}

func (c contents) configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: c.annotations},
		Data:       c.text, BinaryData: c.binary, Immutable: new(c.immutable),
	}
}

func (c contents) secret(name string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: c.annotations},
		StringData: c.text, Data: c.binary, Immutable: new(c.immutable),
	}
}

// explain logs what the cluster knows of the test's pods, and the last lines of the plugins on their nodes.
func (n *namespace) explain(ctx context.Context) {
	pods, err := n.client.CoreV1().Pods(n.name).List(ctx, metav1.ListOptions{})
	if err != nil {
		n.t.Log(err)
		return
	}
	events, err := n.client.CoreV1().Events(n.name).List(ctx, metav1.ListOptions{})
	if err != nil {
		n.t.Log(err)
		return
	}
	nodes := map[string]bool{}
	// .ci/run shows the beginning of each message: so these are one message, with the warnings first.
	var warnings, lines []string
	for _, pod := range pods.Items {
		lines = append(lines, fmt.Sprintf("pod %s on %s: %s %s", pod.Name, pod.Spec.NodeName, pod.Status.Phase, pod.Status.Message))
		for _, c := range pod.Status.ContainerStatuses {
			lines = append(lines, fmt.Sprintf("  container %s: ready %t, %+v", c.Name, c.Ready, c.State))
		}
		nodes[pod.Spec.NodeName] = true
	}
	for _, e := range events.Items {
		line := fmt.Sprintf("event on %s: %s: %s", e.InvolvedObject.Name, e.Reason, e.Message)
		if e.Type == corev1.EventTypeWarning {
			warnings = append(warnings, line)
		} else {
			lines = append(lines, line)
		}
	}
	n.t.Log("events and pods:\n" + strings.Join(append(warnings, lines...), "\n"))
	for node := range nodes {
		plugin, err := n.findPlugin(ctx, pluginNamespace, node)
		if err != nil || plugin == nil {
			n.t.Logf("plugin on %q: %v, %v", node, plugin, err)
			continue
		}
		log, err := n.log(ctx, plugin, &corev1.PodLogOptions{TailLines: new(int64(12))})
		n.t.Logf("plugin on %s (%v):\n%s", node, err, log)
	}
}

// log returns a log of a pod's container. The connection to a node that went away may hang.
func (c *cluster) log(ctx context.Context, p *corev1.Pod, opts *corev1.PodLogOptions) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	log, err := c.client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, opts).DoRaw(ctx)
	if err != nil {
		err = fmt.Errorf("log of %s on %s: %w", p.Name, p.Spec.NodeName, err)
	}
	return string(log), err
}
