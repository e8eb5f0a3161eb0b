package integration

import (
	"fmt"
	"testing"
)

// expandSource writes a DSN into a text of a ConfigMap. The Secret is of a namespace.
func expandSource(namespace string) string {
	return fmt.Sprintf(`
- expand:
    path: conf/app.yaml
    mode: 0440
    configMap: {name: app, key: app.yaml}
    envFrom: [{prefix: APP_, configMapRef: {name: app}}]
    env:
    - {name: USER, value: "$(APP_user)"}
    - {name: PASSWORD, valueFrom: {secretKeyRef: {name: db, key: key, namespace: %s}}, escape: url}
`, namespace)
}

// A file goes with the consent to one of its objects.
func TestExpandWithoutConsent(t *testing.T) {
	t.Parallel()
	n := newNodeAs(t, componentAccount(t, "cross-namespace"), "--cross-namespace", "--resync-interval=1s")
	n.source = newNamespace(t)
	value := n.canary()
	n.put("secret", "db", value)
	n.configMap("app", map[string]string{"app.yaml": "p: $(PASSWORD)", "k": "1"})
	revoke := allow(t, n.source, readers("secret", "db"), account(n.namespace, "web"))
	v := n.volume(map[string]string{"sources": expandSource(n.source) + "- configMap: {name: app, items: [{key: k, path: k}]}\n"})
	v.ServiceAccount = "web"
	n.publishes(v, soon)
	n.wantContent(v, "conf/app.yaml", "p: "+value)
	revoke()
	n.vanishes(v, "conf/app.yaml", withdrawn)
	n.wantContent(v, "k", "1")
	n.wantGone(v, value)
	n.mustUnpublish(v)
	n.wantNothingLeft()
}
