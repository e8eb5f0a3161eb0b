package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// allowReading gives an account the right to read the objects of the node's namespace.
// The returned function takes it away.
func (n *node) allowReading(account string) (forbid func()) {
	n.t.Helper()
	return n.allow(account, "get", "list", "watch")
}

// allow is allowReading with some rights only.
func (n *node) allow(account string, verbs ...string) (forbid func()) {
	n.t.Helper()
	rbac := shared.Client().RbacV1()
	meta := metav1.ObjectMeta{Name: account}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps", "secrets"}, Verbs: verbs},
	}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: meta, Subjects: accountSubjects(account),
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: account},
	}
	if _, err := rbac.Roles(n.namespace).Create(n.t.Context(), role, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
	if _, err := rbac.RoleBindings(n.namespace).Create(n.t.Context(), binding, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
	return func() {
		ctx := context.WithoutCancel(n.t.Context())
		if err := rbac.RoleBindings(n.namespace).Delete(ctx, account, metav1.DeleteOptions{}); err != nil {
			n.t.Fatal(err)
		}
		if err := rbac.Roles(n.namespace).Delete(ctx, account, metav1.DeleteOptions{}); err != nil {
			n.t.Fatal(err)
		}
	}
}

// publishesSoon repeats a publish, as the kubelet does, until the API server has heard
// of the plugin's rights.
func (n *node) publishesSoon(v *harness.Volume) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error { return n.Publish(n.t.Context(), v) })
}

func restartAPIServer(t *testing.T) {
	t.Helper()
	if err := shared.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	if err := shared.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// An API server that starts refuses everybody for a moment. That is nobody's fault and
// no event.
func TestNoDenialWhileTheAPIServerStarts(t *testing.T) {
	n := newNode(t)
	n.configMap("app", map[string]string{"key": n.canary()})
	var volumes []*harness.Volume
	for range 10 {
		v := n.short("app")
		n.mustPublish(v)
		volumes = append(volumes, v)
	}
	for range harness.Scaled(2, 10) {
		restartAPIServer(t)
		value := n.canary()
		n.configMap("app", map[string]string{"key": value})
		for _, v := range volumes {
			n.arrives(v, "key", value, time.Minute)
			if problem := n.problem(v); problem != "" {
				t.Errorf("the condition is %q", problem)
			}
		}
	}
	for _, v := range volumes {
		if events := n.eventsOf(v, "RefForbidden"); len(events) > 0 {
			t.Errorf("%d events, the first: %s", len(events), events[0].Message)
		}
		n.mustUnpublish(v)
	}
}

// eventsOf returns the events on a volume's pod with a reason.
func (n *node) eventsOf(v *harness.Volume, reason string) []corev1.Event {
	n.t.Helper()
	all, err := shared.Client().CoreV1().Events(n.namespace).List(n.t.Context(), metav1.ListOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	var events []corev1.Event
	for _, event := range all.Items {
		if string(event.InvolvedObject.UID) == v.UID && event.Reason == reason {
			events = append(events, event)
		}
	}
	return events
}

// hasEvent waits for an event on the volume's pod with this reason and text, that
// was written once, whatever was retried.
func (n *node) hasEvent(v *harness.Volume, reason, text string) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		events, err := shared.Client().CoreV1().Events(n.namespace).List(n.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var found []string
		for _, event := range events.Items {
			found = append(found, event.Reason+": "+event.Message)
			ours := string(event.InvolvedObject.UID) == v.UID // other pods may have the same trouble
			if !ours || event.Reason != reason || !strings.Contains(event.Message, text) {
				continue
			}
			if event.InvolvedObject.Kind != "Pod" || event.Type != corev1.EventTypeWarning || event.Count != 1 {
				return fmt.Errorf("event on %+v of type %s, %d times", event.InvolvedObject, event.Type, event.Count)
			}
			return nil
		}
		return fmt.Errorf("no event %s with %q among %q", reason, text, found)
	})
}
