package integration

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

func projected(name string, mode *int32, sources ...corev1.VolumeProjection) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources, DefaultMode: mode}}}
}

func secretIn(object string, optional bool, items ...corev1.KeyToPath) corev1.VolumeProjection {
	ref := corev1.LocalObjectReference{Name: object}
	return corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: ref, Optional: &optional, Items: items}}
}

// TestPodIdentityOfAVolumeSource: with the pods' own tokens, what only the pod's own volume
// names takes a right, and the refusal says where it is named.
func TestPodIdentityOfAVolumeSource(t *testing.T) {
	t.Parallel()
	n := newPodNode(t)
	value := n.canary()
	n.secret("db", map[string]string{"password": value})
	v := n.volume(map[string]string{"volume": "own"})
	v.ServiceAccount, v.Beside = "web", []corev1.Volume{projected("own", nil, secretIn("db", false))}
	n.pod(v)
	refusal := fmt.Sprintf(`spec.volumes[0].projected.sources[0].secret: Forbidden: service account "web" of the pod may not get, list and watch Secret "%s/db"`, n.namespace)
	wantStatus(t, n.finalAnswer(v), codes.PermissionDenied, refusal)
	n.hasEvent(v, "RefForbidden", refusal)
	revoke := allow(t, n.namespace, readers("secret", "db"), account(n.namespace, "web"))
	harness.Eventually(t, soon, func() error { return n.Publish(t.Context(), v) })
	n.wantContent(v, "password", value)
	revoke()
	n.vanishes(v, "password", soon)
	n.hasCondition(v, refusal)
	n.mustUnpublish(v)
	n.wantNothingLeft()
}
