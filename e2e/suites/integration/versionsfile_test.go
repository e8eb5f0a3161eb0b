package integration

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A file of versions changes with the objects, also where no other file does.
func TestVersionsFile(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	version := func(object metav1.Object) string {
		const form = "{\n  \"objects\": [\n    {\n      \"kind\": \"ConfigMap\",\n      \"namespace\": %q,\n      \"name\": \"app\",\n      \"uid\": %q,\n      \"resourceVersion\": %q\n    }\n  ]\n}\n"
		return fmt.Sprintf(form, object.GetNamespace(), object.GetUID(), object.GetResourceVersion())
	}
	first := n.configMap("app", map[string]string{"key": n.canary()})
	v := n.volume(map[string]string{"sources": "[{configMap: {name: app}}, {versions: {path: .versions}}]"})
	n.mustPublish(v)
	n.wantContent(v, ".versions", version(first))
	touched, err := shared.Client().CoreV1().ConfigMaps(n.namespace).Patch(t.Context(), "app", types.MergePatchType, []byte(`{"metadata": {"annotations": {"a": "b"}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.arrives(v, ".versions", version(touched), soon)
	n.mustUnpublish(v)
	n.wantNothingLeft()
}
