package integration

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// newNodeObject creates a Node, which exists until the test ends, and returns its name.
func newNodeObject(t *testing.T, ttl string) (name string) {
	t.Helper()
	nodes := shared.Client().CoreV1().Nodes()
	object, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "node-",
		Annotations:  map[string]string{corev1.ObjectTTLAnnotationKey: ttl},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nodes.Delete(context.WithoutCancel(t.Context()), object.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return object.Name
}
