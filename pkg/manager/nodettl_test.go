package manager

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// node returns the manager's Node with a TTL annotation.
func node(ttl string) *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: testNode, Annotations: map[string]string{corev1.ObjectTTLAnnotationKey: ttl}},
	}
}

func TestTTLOf(t *testing.T) {
	for ttl, want := range map[string]time.Duration{
		"0": 0, "1": time.Second, "300": 5 * time.Minute, "2147483647": 2147483647 * time.Second,
		"": time.Minute, "-1": time.Minute, "1m": time.Minute, "1.5": time.Minute, " 1": time.Minute,
		"2147483648": time.Minute, "99999999999999999999": time.Minute,
	} {
		if got := ttlOf(node(ttl)); got != want {
			t.Errorf("%q: got %v, want %v", ttl, got, want)
		}
	}
	if got := ttlOf(&corev1.Node{}); got != time.Minute {
		t.Errorf("no annotation: got %v, want 1m", got)
	}
}

// TestTheNodeSaysHowLong: the annotation is known, changes, and becomes unknown.
func TestTheNodeSaysHowLong(t *testing.T) {
	inBubbleWith(t, Options{ChangeDetection: Cache}, func(t *testing.T, e *env) {
		ref := secretRef("a")
		e.api.put(secret("a", "1"))
		e.api.put(node("10"))
		e.known(ref)
		e.wantAsked(nodeRef) // nothing that is kept has been requested yet
		asks := func(age time.Duration) bool {
			t.Helper()
			e.refresh(ref)
			after(maxAge)
			e.refresh(ref) // of the last moment
			before := len(e.api.requests(ref))
			after(age)
			e.refresh(ref)
			return len(e.api.requests(ref)) > before
		}
		if asks(10*time.Second-1) || !asks(10*time.Second) {
			t.Error("the TTL is not 10 s")
		}
		e.api.put(node("20"))
		if asks(20*time.Second-1) || !asks(20*time.Second) {
			t.Error("a changed TTL has no effect")
		}
		e.refuse(apierrors.NewInternalError(errors.New("unplugged")), func(r apiRequest) bool { return r.ref == nodeRef })
		if asks(20*time.Second-1) || !asks(20*time.Second) {
			t.Error("a failure changes the TTL")
		}
		e.refuseAll(nil)
		e.api.put(node("0"))
		if !asks(0) {
			t.Error("with a TTL of 0 an answer is kept")
		}
		e.api.put(node("soon"))
		if asks(time.Minute-1) || !asks(time.Minute) {
			t.Error("with a bad TTL an answer is not kept for a minute")
		}
	})
}
