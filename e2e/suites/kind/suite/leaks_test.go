package suite

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/internal/leak"
)

// canary makes a value of a Secret from a text. Wherever it is found but in a volume, it
// fails the test or the run.
func canary(text string) string { return leak.Value + "-" + text }

// TestMain searches, once all tests are over, what is left of what the plugins showed. Each
// test's own namespace is searched at the test's end, when it goes.
func TestMain(m *testing.M) {
	status := m.Run()
	if os.Getenv("KUBECONFIG") != "" {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := searchCluster(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "FAIL: the search for values and tokens:", err)
			status = max(status, 1)
		}
	}
	os.Exit(status)
}

// searchCluster searches the plugins' logs, all events, and what is said of pods. What the plugins serve is searched by the suite seen.
func searchCluster(ctx context.Context) error {
	c, err := newCluster()
	if err != nil {
		return err
	}
	plugins, err := c.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: pluginLabels})
	if err == nil && len(plugins.Items) == 0 {
		err = errors.New("there is no plugin")
	}
	if err != nil {
		return err
	}
	errs := []error{c.searchObjects(ctx, pluginNamespace, metav1.NamespaceAll)}
	for i := range plugins.Items {
		errs = append(errs, c.searchLogs(ctx, &plugins.Items[i]))
	}
	return errors.Join(errs...)
}

// searchLogs searches the log of a plugin, also that of the run before this one, if the runtime has kept it. Nor may it say that the plugin has
// derived another request than the kubelet sent, or that it has recovered from a panic.
func (c *cluster) searchLogs(ctx context.Context, p *corev1.Pod) error {
	var errs []error
	for _, previous := range []bool{false, true} {
		if previous && (len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].RestartCount == 0) {
			continue
		}
		text, err := c.log(ctx, p, &corev1.PodLogOptions{Previous: previous})
		if previous && err != nil && lostLog.MatchString(err.Error()) {
			continue
		}
		if text == "" && !previous { // an earlier run may have ended before its first line
			errs = append(errs, fmt.Errorf("the log of %s is empty", p.Name))
		}
		errs = append(errs, err, leak.Check("the log of "+p.Name, text))
		for _, bad := range []string{logDerived, "panicked"} {
			if strings.Contains(text, bad) {
				errs = append(errs, fmt.Errorf("the log of %s says: %s", p.Name, bad))
			}
		}
	}
	return errors.Join(errs...)
}

// lostLog is what the kubelet says of a log that the runtime has not kept: CRI-O forgets at a reboot what ran before.
var lostLog = regexp.MustCompile("previous terminated container .* not found|unable to retrieve container logs")

// isCRIO says whether a node's container runtime is CRI-O.
func isCRIO(node *corev1.Node) bool {
	return strings.HasPrefix(node.Status.NodeInfo.ContainerRuntimeVersion, "cri-o:")
}

// searchObjects searches the events and the pods' status of a namespace, or of all. It must find an event that it creates.
func (c *cluster) searchObjects(ctx context.Context, namespace, in string) error {
	control := "control of the search " + rand.Text()
	if _, err := c.client.CoreV1().Events(namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: "control-"},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: "control"},
		Type:           corev1.EventTypeNormal, Reason: "Control", Message: control,
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	events, err := c.client.CoreV1().Events(in).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	pods, err := c.client.CoreV1().Pods(in).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	var messages strings.Builder
	for i := range events.Items {
		e := &events.Items[i]
		fmt.Fprintln(&messages, e.Message)
		errs = append(errs, leak.CheckObject("event "+e.Namespace+"/"+e.Name, e))
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		errs = append(errs, leak.CheckObject("status of pod "+p.Namespace+"/"+p.Name, p.Status))
	}
	if !strings.Contains(messages.String(), control) {
		errs = append(errs, fmt.Errorf("the events of %s lack %q", in, control))
	}
	return errors.Join(errs...)
}

// searchBefore searches a plugin's log before its pod goes, and the log with it, also while the test cleans up. Beside it another test may
// restart the kubelet, without which there is no log.
func (n *namespace) searchBefore(plugin *corev1.Pod) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.t.Context()), podTimeout)
	defer cancel()
	if err := poll(ctx, func(ctx context.Context) error { return n.searchLogs(ctx, plugin) }); err != nil {
		n.t.Error(err)
	}
}

// searchNamespace searches what there is of a test when it ends.
func (n *namespace) searchNamespace(ctx context.Context) {
	n.t.Helper()
	err := n.searchObjects(ctx, n.name, n.name)
	gone := apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) // the test may have removed it
	if err != nil && !gone {
		n.t.Errorf("values or tokens have leaked, or were not searched for: %v", err)
	}
}
