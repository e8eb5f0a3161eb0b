package volume

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	logsapi "k8s.io/component-base/logs/api/v1"
	logsjson "k8s.io/component-base/logs/json"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
)

// canary is a value that no output may show in any form.
const canary = "canary-7Hq2"

// shown returns the form in which a text shows the canary, or "".
func shown(text string) string {
	decimals := strings.Trim(fmt.Sprint([]byte(canary)), "[]")
	for form, bytes := range map[string]string{
		"text": canary, "decimals": decimals, "decimals in C": strings.ReplaceAll(decimals, " ", ","),
		"hexadecimal": hex.EncodeToString([]byte(canary)), "spaced hex": fmt.Sprintf("% x", canary),
		"hex in Go": strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%#v", []byte(canary)), "[]byte{"), "}"),
		"binary":    strings.Trim(fmt.Sprintf("%b", []byte(canary)), "[]"), "characters": strings.Trim(fmt.Sprintf("%c", []byte(canary)), "[]"),
		"code points": strings.Trim(fmt.Sprintf("%U", []byte(canary)), "[]"), "octal": strings.Trim(fmt.Sprintf("%o", []byte(canary)), "[]"),
		// Without its end, which depends on what follows.
		"base64": base64.StdEncoding.EncodeToString([]byte(canary))[:12],
	} {
		if strings.Contains(strings.ToLower(text), strings.ToLower(bytes)) {
			return form
		}
	}
	return ""
}

const hiddenName = "hidden pointers"

// canaryHolders returns the ways in which code holds objects and files.
func canaryHolders() map[string]any {
	o := &Object{
		Ref: Ref{Kind: Secret, Namespace: "ns", Name: "db"}, Version: Version{UID: "8f7e", ResourceVersion: "42"},
		Data: map[string][]byte{"password": []byte(canary)}, BinaryData: map[string][]byte{"blob": []byte(canary)},
	}
	f := File{Path: "conf/password", Data: []byte(canary), Mode: 0o440}
	tree, token := Payload{Files: []File{f}, DirMode: 0o755}, NewToken(canary, time.Now())
	holder := struct {
		Object  Object
		File    *File
		Payload Payload
	}{*o, &f, tree}
	return map[string]any{
		"Object": *o, "*Object": o, "**Object": &o, "[]Object": []Object{*o}, "map of *Object": map[string]*Object{"k": o}, "any of Object": []any{*o, o},
		"File": f, "*File": &f, "[]File": []File{f}, "Payload": tree, "*Payload": &tree,
		"holder": holder, "*holder": &holder, "embedded": struct{ Object }{*o}, "embedded pointer": struct{ *Object }{o},
		// With two embedded types, neither's methods are promoted.
		"embedded twice": struct {
			Object
			File
		}{*o, f},
		"Token": token, "*Token": &token, "[]Token": []Token{token}, "map of *Token": map[string]*Token{"a": &token}, "token holder": struct{ token Token }{token},
		// On the values of unexported fields, fmt calls no methods. Their pointers print as addresses with the verbs that go vet allows.
		hiddenName: struct {
			object *Object
			file   *File
			tree   *Payload
			byRef  map[Ref]*Object
		}{o, &f, &tree, map[Ref]*Object{o.Ref: o}},
	}
}

func TestObjectString(t *testing.T) {
	o := Object{
		Ref: Ref{Kind: ConfigMap, Namespace: "ns", Name: "app"}, Version: Version{ResourceVersion: "7"},
		Data: map[string][]byte{"a": nil, "b": nil}, BinaryData: map[string][]byte{"c": nil},
	}
	expect.Equal(t, "the object", o.String(), `ConfigMap "ns/app" at 7 (3 keys)`)
}

// TestNoOutputShowsAValue: neither fmt, whatever the verb, nor JSON, nor a logger shows a value.
func TestNoOutputShowsAValue(t *testing.T) {
	verbs := []string{
		"%v", "%+v", "%#v", "%s", "%+s", "%#s", "%q", "%+q", "%#q", "%x", "%X", "%#x", "% x", "% X", "%d", "%o", "%O", "%b", "%c", "%U",
		"%e", "%g", "%f", "%t", "%20v", "%-.3v", "%08d", "%z", "%!", "%[1]*[1]v",
	}
	noVerb := "text"
	for name, value := range canaryHolders() {
		asJSON, err := json.Marshal(value) // not every holder can be marshalled
		var inText, inJSON bytes.Buffer
		logTo(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&inText), textlogger.Verbosity(10))), value)
		out := logsjson.AddNopSync(&inJSON)
		log, control := logsjson.NewJSONLogger(logsapi.VerbosityLevel(10), out, out, nil)
		logTo(log, value)
		control.Flush()
		if inText.Len() == 0 || inJSON.Len() == 0 {
			t.Errorf("a logger wrote nothing of %s", name)
		}
		outputs := map[string]string{
			"Sprint": fmt.Sprint(value), "Sprintln": fmt.Sprintln("a", value), "an error": fmt.Errorf("reading %v: %w", value, io.EOF).Error(),
			"surplus arguments": fmt.Sprintf(noVerb, []any{value}...), "JSON": fmt.Sprint(string(asJSON), err),
			"klog's text logger": inText.String(), "component-base's JSON logger": inJSON.String(),
		}
		for _, verb := range verbs {
			if name != hiddenName || slices.Contains([]string{"%v", "%+v", "%#v", "%x", "%d"}, verb) {
				outputs[verb] = fmt.Sprintf(verb, value)
			}
		}
		for what, text := range outputs {
			if form := shown(text); form != "" {
				t.Errorf("%s in %s shows the value as %s: %s", name, what, form, text)
			}
		}
	}
}

func logTo(log klog.Logger, value any) {
	log = log.WithValues("with", value)
	log.Info("message", "value", value)
	log.V(0).Error(fmt.Errorf("of %v", value), "message", "value", value)
	klog.FromContext(klog.NewContext(context.Background(), log)).Info("message", "value", value)
}

func TestCanaryShare(t *testing.T) {
	for _, test := range []struct {
		annotation  string
		isImmutable bool
		percent     int
		problem     string
	}{
		{"", false, 0, ""},
		{"", true, 0, ""},
		{"0%", false, 0, ""},
		{"10%", false, 10, ""},
		{"100%", false, 100, ""},
		{"10", false, 0, `"10", which is not a percentage such as 10%`},
		{"ten", false, 0, `"ten", which is not`},
		{"10%", true, 0, "immutable"},
	} {
		o := Object{Canary: test.annotation, Immutable: test.isImmutable}
		percent, problem := o.CanaryShare()
		if percent != test.percent || (problem == "") != (test.problem == "") || !strings.Contains(problem, test.problem) {
			t.Errorf("%q, immutable %t: %d %q", test.annotation, test.isImmutable, percent, problem)
		}
		want := fmt.Sprintf("%d%%", percent)
		if problem != "" {
			want += ": " + problem
		}
		expect.Equal(t, "the text", o.CanaryText(), want)
	}
}

// TestCanaries: the sources of canaries follow all others, are optional, and may repeat their paths.
func TestCanaries(t *testing.T) {
	spec := parsed(t, map[string]string{"sources": `
- secret: {name: canary, canary: true, items: [{key: k, path: d/k}]}
- configMap: {name: app, items: [{key: k, path: d/k}, {key: l, path: l}]}
- configMap: {name: other-canary, canary: true, optional: true}
- env: {path: e, envFrom: [{secretRef: {name: canary, canary: true}}, {configMapRef: {name: app}}], env: [{name: A, valueFrom: {configMapKeyRef: {name: other-canary, key: k, canary: true}}}]}
`})
	var order []string
	for i := range spec.Sources {
		order = append(order, spec.Sources[i].Field)
		for _, use := range spec.Sources[i].References() {
			if isCanary := use.Ref.Name != "app"; use.Canary != isCanary || use.Optional != isCanary {
				t.Errorf("%+v", use)
			}
		}
	}
	expect.Equal(t, "order", strings.Join(order, " "), "sources[1].configMap sources[3].env sources[0].secret sources[2].configMap")
	if got := spec.Canaries(); len(got) != 2 || got[Ref{ConfigMap, "ns", "app"}] {
		t.Errorf("canaries %v", got)
	}
}

// TestRefusedCanaries: each refusal names its field.
func TestRefusedCanaries(t *testing.T) {
	const app = "{configMap: {name: app}}, "
	for _, test := range []struct{ sources, more, want string }{
		{app + "{configMap: {name: c, canary: true, optional: false}}", "", "sources[1].configMap.optional: Forbidden: must not be false beside canary: pods that don't see the canary start without it"},
		{app + "{configMap: {name: c, canary: \"yes\"}}", "", "sources[1].configMap.canary: Invalid value: \"string\": must be true or false"},
		{"{join: {path: j, sources: [{configMap: {name: c, key: k, canary: true}}]}}", "", "sources[0].join.sources[0].configMap.canary: Forbidden: must not be set in join and expand"},
		{"{expand: {path: x, configMap: {name: c, key: k, canary: true}, env: [{name: A, value: a}]}}", "", "sources[0].expand.configMap.canary: Forbidden: must not be set in join and expand"},
		{"{expand: {path: x, configMap: {name: app, key: k}, env: [{name: A, valueFrom: {secretKeyRef: {name: c, key: k, canary: true}}}]}}", "", "sources[0].expand.env[0].valueFrom.secretKeyRef.canary: Forbidden: must not be set in join and expand"},
		{"{expand: {path: x, configMap: {name: app, key: k}, envFrom: [{secretRef: {name: c, canary: true}}]}}", "", "sources[0].expand.envFrom[0].secretRef.canary: Forbidden: must not be set in join and expand"},
		{app + "{configMap: {name: c, canary: true}}", "updatePolicy=Pinned", "sources[1].configMap.canary: Forbidden: must not be true beside updatePolicy Pinned: such a volume never changes"},
		{app + "{configMap: {name: c, canary: true}}", "sameRevision=true", "sources[1].configMap.canary: Forbidden: must not be true beside sameRevision"},
		{app + "{env: {path: e, envFrom: [{secretRef: {name: c, canary: true}}]}}", "writeStrategy=InPlace", "sources[1].env.envFrom[0].secretRef.canary: Forbidden: must not be true beside writeStrategy InPlace"},
		{app + "{configMap: {name: app, canary: true, path: d}}", "", `sources[0].configMap: Forbidden: must not name ConfigMap "ns/app", which is named with canary elsewhere in the volume`},
		{"{configMap: {name: c, canary: true, items: [{key: k, path: p}]}}, {configMap: {name: d, canary: true, items: [{key: k, path: p}]}}", "", "conflicting duplicate paths"},
		{"{configMap: {name: app, items: [{key: k, path: p}]}}, {configMap: {name: c, canary: true, items: [{key: k, path: p/q}]}}", "", `must not lie below "p"`},
		{"{versions: {path: v}}, {configMap: {name: c, canary: true, items: [{key: k, path: v}]}}", "", "conflicting duplicate paths"},
		{"{volume: {name: native, canary: true}}", "", "sources[0].volume.canary: Forbidden: unknown field; known are name, path"},
		{"{podEnv: {path: e, container: c, canary: true}}", "", "sources[0].podEnv.canary: Forbidden: unknown field"},
	} {
		attributes := map[string]string{"sources": "[" + test.sources + "]"}
		if name, value, ok := strings.Cut(test.more, "="); ok {
			attributes[name] = value
		}
		_, err := Parse(attributes, Pod{Namespace: "ns"})
		expect.Has(t, test.sources+" "+test.more, fmt.Sprint(err), test.want)
	}
}

func TestParseShare(t *testing.T) {
	for text, want := range map[string]int{"": 100, "0%": 0, "7%": 7, "10%": 10, "100%": 100} {
		expect.Equal(t, text, fmt.Sprint(ParseShare(text)), fmt.Sprint(want, true))
	}
	for _, text := range []string{"10", "%", "101%", "-1%", "1.5%", " 1%", "1%\n", "00%", "010%", "ten", "100%" + strings.Repeat("0", 1<<18)} {
		expect.Equal(t, fmt.Sprintf("%.20q", text), fmt.Sprint(ParseShare(text)), "0 false")
	}
}

// knownPlace was computed by another program.
const knownPlace = 98

// TestRolloutPlace: places are spread over all percents, and a known pod has the place that it always had. With another place, a held
// version would reach pods that had not taken it.
func TestRolloutPlace(t *testing.T) {
	expect.Equal(t, "the place", RolloutPlace("5f1c3a52-6d3e-4c1b-9f0a-5b2c7d000001"), knownPlace)
	const pods = 20_000
	var counts [101]int
	for i := range pods {
		counts[RolloutPlace(types.UID(fmt.Sprintf("%08x-6d3e-4c1b-9f0a-5b2c7d%06x", i*2654435761, i)))]++
	}
	for i, n := range counts[1:] {
		expect.Between(t, fmt.Sprintf("pods with the place %d", i+1), n, pods/100*7/10, pods/100*13/10)
	}
}

// TestRevisions: a revision has a form that can be printed anywhere.
func TestRevisions(t *testing.T) {
	for text, want := range map[string]bool{
		"4f2a91c": true, "refs/heads/main@sha1:4f2a91c+dirty_1.2-3": true, "1": true, strings.Repeat("r", 128): true, "azAZ09": true,
		"": false, strings.Repeat("r", 129): false, "a b": false, "a\n": false, "ä": false, "a;b": false, "a=b": false, "[": false, "`": false, "{": false,
	} {
		expect.Equal(t, fmt.Sprintf("%q", text), Revision(text).IsValid(), want)
	}
}

// TestPodFromContext: a pod is known by all of its names, as the kubelet gives them. Each one must be fit for a path and a log.
func TestPodFromContext(t *testing.T) {
	kubelets := map[string]string{
		kubeletPrefix + "pod.namespace": "ns", kubeletPrefix + "pod.name": "web-0", kubeletPrefix + "pod.uid": "8f7e",
		kubeletPrefix + "serviceAccount.name": "web", "secret": "db",
	}
	expect.Equal(t, "the pod", must.Get(PodFromContext(kubelets))(t), testPod())
	const (
		required    = "Required value: the CSIDriver object must have podInfoOnMount: true"
		noElement   = "must be a single path element"
		unprintable = "must not contain characters that can't be printed"
	)
	for name, test := range map[string]struct{ key, value, want string }{
		"no namespace":  {"pod.namespace", "", required},
		"no name":       {"pod.name", "", required},
		"no UID":        {"pod.uid", "", required},
		"no account":    {"serviceAccount.name", "", required},
		"a path":        {"pod.uid", "a/b", `Invalid value: "a/b": ` + noElement},
		"a NUL":         {"pod.uid", "a\x00", `Invalid value: "a\x00": ` + noElement},
		"the directory": {"pod.name", ".", `Invalid value: ".": ` + noElement},
		"the one above": {"pod.name", "..", `Invalid value: "..": ` + noElement},
		"a line":        {"pod.name", "web\n", `Invalid value: "web\n": ` + unprintable},
	} {
		t.Run(name, func(t *testing.T) {
			changed := maps.Clone(kubelets)
			changed[kubeletPrefix+test.key] = test.value
			pod, err := PodFromContext(changed)
			checkError(t, err, "volume_context["+kubeletPrefix+test.key+"]: "+test.want)
			expect.Equal(t, "the pod beside the error", pod, Pod{})
		})
	}
	for _, name := range []string{"...", ".a", "a..b", "web.0"} {
		changed := maps.Clone(kubelets)
		changed[kubeletPrefix+"pod.name"] = name
		expect.Equal(t, "the pod's name", must.Get(PodFromContext(changed))(t).Name, name)
	}
	if _, err := PodFromContext(nil); err == nil || strings.Count(err.Error(), required) != 4 {
		t.Errorf("an empty context: %v", err)
	}
}

// TestRemoveDeleted: files of deleted objects are removed only if the author asks for it.
func TestRemoveDeleted(t *testing.T) {
	for onDelete, want := range map[string]bool{"": false, "Keep": false, "Remove": true} {
		attributes := map[string]string{"secret": "db", "onDelete": onDelete}
		if onDelete == "" {
			delete(attributes, "onDelete")
		}
		expect.Equal(t, "onDelete "+onDelete, parsed(t, attributes).RemoveDeleted(), want)
	}
}

const (
	canaryToken = "eyJhbGciOi.CANARY.c2ln"
	expiry      = "2030-01-02T03:04:05Z"
)

func tokens(audience, token, expires string) map[string]string {
	return map[string]string{tokensKey: fmt.Sprintf(`{%q:{"token":%q,"expirationTimestamp":%q}}`, audience, token, expires)}
}

func TestTokenFromRequestRefuses(t *testing.T) {
	const fix = `the CSIDriver object must have tokenRequests: [{audience: ""}] and requiresRepublish: true`
	for want, test := range map[string]struct{ secrets, context map[string]string }{
		`volume_context[csi.storage.k8s.io/serviceAccount.tokens]: Required value: ` + fix:                                                      {},
		`secrets[csi.storage.k8s.io/serviceAccount.tokens]: Invalid value: "a string of 22 bytes": must be a JSON object of tokens by audience`: {map[string]string{tokensKey: canaryToken}, tokens("", canaryToken, expiry)},
		`volume_context[csi.storage.k8s.io/serviceAccount.tokens][]: Required value: ` + fix:                                                    {nil, tokens("vault", canaryToken, expiry)},
		`volume_context[csi.storage.k8s.io/serviceAccount.tokens][]: Invalid value: "an object": must have token and expirationTimestamp`:       {nil, map[string]string{tokensKey: `{"":{"token":"` + canaryToken + `"}}`}},
		`secrets[csi.storage.k8s.io/serviceAccount.tokens][]: Invalid value: "an object": must have token and expirationTimestamp`:              {tokens("", "", expiry), nil},
		`secrets[csi.storage.k8s.io/serviceAccount.tokens]: Invalid value: "a string of 68 bytes": must be a JSON object of tokens by audience`: {tokens("", canaryToken, "soon"), nil},
	} {
		got, err := TokenFromRequest(test.secrets, test.context)
		expect.Equal(t, "the error", fmt.Sprint(err), want)
		if err != nil && strings.Contains(err.Error(), "CANARY") || got.Reveal() != "" {
			t.Errorf("%s: the error or what came with it holds the token", want)
		}
	}
}

// A token that the kubelet provides again is the same one, whenever it expires.
func TestSameToken(t *testing.T) {
	now := time.Now()
	token := NewToken(canaryToken, now)
	for name, test := range map[string]struct {
		other Token
		want  bool
	}{
		"provided again": {NewToken(canaryToken, now.Add(time.Hour)), true},
		"the next one":   {NewToken(canaryToken+"2", now), false},
		"none":           {Token{}, false},
	} {
		expect.Equal(t, name, fmt.Sprint(token.Same(test.other), test.other.Same(token)), fmt.Sprint(test.want, test.want))
	}
}
