package integration

import (
	"testing"

	"google.golang.org/grpc/codes"
)

// A joined file follows each of its objects, and a part that is optional comes and goes.
func TestJoin(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.configMap("corp", map[string]string{"ca.pem": "corp 1"})
	own := n.canary()
	n.secret("own", map[string]string{"ca.crt": own + "\n"})
	v := n.volume(map[string]string{"sources": "- join: {path: tls/ca.pem, mode: 0444, sources: [{configMap: {name: corp, key: ca.pem}}, {secret: {name: own, key: ca.crt}}, {configMap: {name: late, key: k, optional: true}}]}\n"})
	n.mustPublish(v)
	n.wantContent(v, "tls/ca.pem", "corp 1\n"+own+"\n")
	n.configMap("corp", map[string]string{"ca.pem": "corp 2\n"})
	n.arrives(v, "tls/ca.pem", "corp 2\n"+own+"\n", soon)
	n.configMap("late", map[string]string{"k": "late"})
	n.arrives(v, "tls/ca.pem", "corp 2\n"+own+"\nlate\n", soon)
	n.secret("own", map[string]string{"other": n.canary()})
	n.hasEvent(v, "RefKeyNotFound", "references non-existent secret key: ca.crt")
	n.wantContent(v, "tls/ca.pem", "corp 2\n"+own+"\nlate\n")
	n.mustUnpublish(v)
	bad := n.volume(map[string]string{"sources": "[{join: {path: p}}]"})
	wantStatus(t, n.Publish(t.Context(), bad), codes.InvalidArgument, "sources[0].join.sources: Required value: must have at least one source")
	n.wantNothingLeft()
}
