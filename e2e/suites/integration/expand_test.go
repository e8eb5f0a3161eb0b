package integration

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// A text with values follows each of its objects, and a value that it can't hold leaves it as it was.
func TestExpand(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.configMap("app", map[string]string{"app.yaml": `dsn: "db://$(USER):$(PASSWORD)@h/$$$(USER)$(NODE)"` + "\n", "user": "me"})
	first, second := n.canary(), n.canary()
	n.secret("db", map[string]string{"key": first + "@:/%?#"})
	const escaped = "%40%3A%2F%25%3F%23"
	v := n.volume(map[string]string{"sources": expandSource(n.namespace) + "- versions: {path: v}\n- configMap: {name: app, path: all}\n"})
	n.mustPublish(v)
	n.wantContent(v, "conf/app.yaml", `dsn: "db://me:`+first+escaped+`@h/$$(USER)$(NODE)"`+"\n")
	n.wantContent(v, "all/user", "me")
	n.secret("db", map[string]string{"key": second + "@:/%?#"})
	n.arrives(v, "conf/app.yaml", `dsn: "db://me:`+second+escaped+`@h/$$(USER)$(NODE)"`+"\n", soon)
	n.configMap("app", map[string]string{"app.yaml": "$(USER):$(PASSWORD)", "user": "you"})
	n.arrives(v, "conf/app.yaml", "you:"+second+escaped, soon)
	n.arrives(v, "all/user", "you", soon)

	n.secret("db", map[string]string{"other": n.canary()})
	n.hasEvent(v, "RefKeyNotFound", "sources[0].expand.env[1].valueFrom.secretKeyRef: couldn't find key key in Secret "+n.namespace+"/db")
	n.wantContent(v, "conf/app.yaml", "you:"+second+escaped)
	n.mustUnpublish(v)

	bad := n.volume(map[string]string{"sources": "[{expand: {path: p, secret: {name: s, key: k}, env: [{name: A, escape: yaml}]}}]"})
	wantStatus(t, n.Publish(t.Context(), bad), codes.InvalidArgument, `sources[0].expand.env[0].escape: Unsupported value: "yaml": supported values: "json", "url", "none"`)
	n.wantNothingLeft()
}

// A value that isn't UTF-8 holds up a first publish, until there is another one.
func TestExpandOfNoText(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--publish-wait=2s")
	n.configMap("app", map[string]string{"k": `"$(PASSWORD)"`})
	secrets := shared.Client().CoreV1().Secrets(n.namespace)
	raw := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Data: map[string][]byte{"key": []byte(n.canary() + "\xff")}}
	if _, err := secrets.Create(t.Context(), raw, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	v := n.volume(map[string]string{"sources": "[{expand: {path: p, configMap: {name: app, key: k}, env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: db, key: key}}, escape: json}]}}]"})
	const unfit = "sources[0].expand: the value of variable PASSWORD is not UTF-8, which escape: json needs: store a text, or set escape: url or none"
	wantStatus(t, n.finalAnswer(v), codes.InvalidArgument, unfit)
	n.hasEvent(v, "VolumeUpdateFailed", unfit)
	value := n.canary()
	n.secret("db", map[string]string{"key": value + `"`})
	n.publishes(v, soon)
	n.wantContent(v, "p", `"`+value+`\""`)
	if _, err := secrets.Update(t.Context(), raw, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.hasCondition(v, unfit)
	n.wantContent(v, "p", `"`+value+`\""`)
	n.mustUnpublish(v)
	n.wantNothingLeft()
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

// With the node's identity a pod's spec has to name each of the objects.
func TestExpandAsNode(t *testing.T) {
	t.Parallel()
	n := newAsNode(t)
	value := n.canary()
	n.configMap("app", map[string]string{"app.yaml": "p: $(PASSWORD)", "user": "me"})
	n.secret("db", map[string]string{"key": value})
	sources := map[string]string{"sources": expandSource(n.namespace)}
	err := n.Publish(t.Context(), n.shown(nativeConfigMap("app"), sources))
	wantStatus(t, err, codes.InvalidArgument, fmt.Sprintf(`Secret "%s/db"`, n.namespace))
	v := n.shown(nativeBoth("app", "db"), sources)
	n.publishes(v, soon)
	n.wantContent(v, "conf/app.yaml", "p: "+value)
	in := n.shown(nativeBoth("app", "db"), map[string]string{"sources": "[{volume: {name: native, path: native.d}}]"})
	n.publishes(in, soon)
	n.wantContent(in, "native.d/user", "me")
	n.wantContent(in, "native.d/key", value)
	value = n.canary()
	n.secret("db", map[string]string{"key": value})
	n.arrives(v, "conf/app.yaml", "p: "+value, soon)
	n.arrives(in, "native.d/key", value, soon)
	n.mustUnpublish(v)
	n.mustUnpublish(in)
}
