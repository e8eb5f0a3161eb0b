package integration

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const envSources = `
- env:
    path: app.env
    mode: 0400
    envFrom: [{prefix: APP_, configMapRef: {name: app}}, {secretRef: {name: none, optional: true}}]
    env:
    - {name: DB_PASSWORD, valueFrom: {secretKeyRef: {name: db, key: password}}}
    - {name: DB_URL, value: "db://$(POD)@$(APP_host)/$$(x)"}
    - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: NOT.FOR.FILES, value: x}
- env: {path: sh/app.sh, format: shell, env: [{name: A, value: "it's"}]}
`

// An env file follows the objects that its variables come from.
func TestEnvFile(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	password := n.canary()
	n.configMap("app", map[string]string{"host": "h1", "a.b": "x"})
	n.secret("db", map[string]string{"password": password})
	v := n.volume(map[string]string{"sources": envSources})
	n.mustPublish(v)
	env := func(host, password string) string {
		return "APP_host=" + host + "\nDB_PASSWORD=" + password + "\nDB_URL=" + `'db://$(POD)@` + host + `/$(x)'` + "\nNODE=node-1\nPOD=" + v.Pod + "\n"
	}
	n.wantContent(v, "app.env", env("h1", password))
	n.wantContent(v, "sh/app.sh", "A='it'\\''s'\n")
	files, err := harness.Files(n.Target(v))
	if err != nil || files["app.env"].Mode != 0o400 || files["sh/app.sh"].Mode != 0o644 {
		t.Errorf("modes: %v, %v; %v", files["app.env"].Mode, files["sh/app.sh"].Mode, err)
	}
	n.hasEvent(v, "InvalidEnvironmentVariableNames", "app.env: skipped, because a dotenv file can't hold them: APP_a.b, NOT.FOR.FILES")
	n.configMap("app", map[string]string{"host": "h2", "a.b": "x"})
	n.arrives(v, "app.env", env("h2", password), soon)
	password = n.canary()
	n.secret("db", map[string]string{"password": password})
	n.arrives(v, "app.env", env("h2", password), soon)

	n.secret("db", map[string]string{"other": n.canary()})
	n.hasEvent(v, "RefKeyNotFound", "couldn't find key password in Secret "+n.namespace+"/db")
	n.wantContent(v, "app.env", env("h2", password))
	n.mustUnpublish(v)
	n.wantNothingLeft()
}

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
