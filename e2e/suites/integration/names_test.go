package integration

import (
	"path"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestNoAnswerNamesAnotherTenant: a server that can't read a tenant's Secret names it in each answer. What the
// kubelet gets, and shows in the pods' events, has the code and no name, also for a pod whose own request failed.
func TestNoAnswerNamesAnotherTenant(t *testing.T) {
	for _, detection := range []string{"Watch", "Get"} {
		t.Run(detection, func(t *testing.T) {
			t.Parallel()
			n := newProxied(t, faultproxy.Options{}, "--publish-wait=2s", "--change-detection="+detection)
			if err := n.proxy.Inject(faultproxy.SecretsFail); err != nil {
				t.Fatal(err)
			}
			answers := map[*harness.Volume]<-chan error{}
			for _, name := range []string{"first", "second", "third"} {
				n.secret(name, map[string]string{"key": n.canary()})
				v := n.volume(map[string]string{"secret": name})
				answers[v] = n.publishing(v)
			}
			for v, answer := range answers {
				err := n.answer(answer, soon)
				if text := status.Convert(err).Message(); status.Code(err) != codes.Unavailable ||
					!strings.Contains(text, "the API server answered 500 InternalError") || strings.Contains(text, path.Base(faultproxy.CorruptKey)) {
					t.Errorf("pod %s got %v", v.Pod, err)
				}
			}
		})
	}
}
