package suite

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// rotations is how often a password changes, and rotationLimit how long that may take half of the times: a resync takes longer.
const (
	rotations     = 5
	rotationLimit = time.Second
)

// A program reads a DSN with net/url from a YAML file of a ConfigMap, with a Secret's password in it. The file follows the
// Secret, and goes with the consent of the Secret's owner.
func TestExpand(t *testing.T) {
	n, source := newNamespace(t), newNamespace(t)
	n.serviceAccount("web")
	password := func(i int) string { return canary(fmt.Sprint(i)) + "@:/%?#" }
	n.createConfigMap("app", object{"app.yaml": `dsn: "db://app:$(PASSWORD)@db.example:5432/$(PASSWORD)?sslmode=require&again=$(PASSWORD)"` + "\n", "other": "stays"})
	source.createSecret("db", object{"password": password(0)})
	n.grant("configmaps", "app", n.name, "web")
	revoke := source.grant("secrets", "db", n.name, "web")
	spec := newPod("reader", asPod("settings", attributes{"sources": fmt.Sprintf(`
- expand:
    path: app.yaml
    configMap: {name: app, key: app.yaml}
    env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: db, key: password, namespace: %s}}, escape: url}]
- configMap: {name: app, path: all, items: [{key: other, path: other}]}
`, source.name)}))
	spec.Spec.ServiceAccountName = "web"
	p := n.start(spec)
	const file = mountDir + "settings/app.yaml"
	p.wantDSN(file, password(0))

	var took []time.Duration
	for i := range rotations {
		escaped := canary(fmt.Sprint(i+1)) + "%40%3A%2F%25%3F%23"
		w := p.await(file, strings.ReplaceAll(`dsn: "db://app:$@db.example:5432/$?sslmode=require&again=$"`+"\n", "$", escaped), busyLimit)
		sent := time.Now()
		source.updateSecret("db", object{"password": password(i + 1)})
		took = append(took, w.arrive().at.Sub(sent))
		p.wantDSN(file, password(i+1))
	}
	slices.Sort(took)
	t.Logf("a changed password was in the file after %s", took)
	if median := took[rotations/2]; median > rotationLimit {
		t.Errorf("half of the changes took %s or more, want less than %s", median, rotationLimit)
	}

	revoke()
	p.awaitNoFile(file, podTimeout)
	if got := p.probe("read", mountDir+"settings/all/other"); got != "stays" {
		t.Errorf("the other file has %q", got)
	}
	p.delete()
}

// wantDSN has a program in the pod read the DSN of a file, and wants the password in each of its parts.
func (p *pod) wantDSN(file, password string) {
	p.t.Helper()
	var got struct {
		User, Password, Host, Path string
		Query                      map[string][]string
	}
	if err := json.Unmarshal([]byte(p.probe("dsn", file)), &got); err != nil {
		p.t.Fatal(err)
	}
	query := map[string][]string{"sslmode": {"require"}, "again": {password}}
	if got.User != "app" || got.Password != password || got.Host != "db.example:5432" || got.Path != "/"+password || fmt.Sprint(got.Query) != fmt.Sprint(query) {
		p.t.Errorf("the program reads %+v, want the password %q", got, password)
	}
}
