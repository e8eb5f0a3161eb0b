package volume

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	logsapi "k8s.io/component-base/logs/api/v1"
	logsjson "k8s.io/component-base/logs/json"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// canary is a value that no output may show in any form.
const canary = "canary-7Hq2"

func canaryObject() *Object {
	return &Object{
		Ref:        Ref{Kind: Secret, Namespace: "ns", Name: "db"},
		Version:    Version{UID: "8f7e", ResourceVersion: "42"},
		Data:       map[string][]byte{"password": []byte(canary)},
		BinaryData: map[string][]byte{"blob": []byte(canary)},
	}
}

func canaryFile() File { return File{Path: "conf/password", Data: []byte(canary), Mode: 0o440} }

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

type (
	valueHolder struct {
		Object  Object
		File    *File
		Payload Payload
	}
	// hiddenHolder has unexported fields, on whose values fmt calls no methods. Their pointers print as addresses with the verbs that go
	// vet allows.
	hiddenHolder struct {
		object *Object
		file   *File
		tree   *Payload
		byRef  map[Ref]*Object
	}
	embedder    struct{ Object }
	ptrEmbedder struct{ *Object }
	// With two embedded types, neither's methods are promoted.
	doubleEmbedder struct {
		Object
		File
	}
)

const hiddenName = "hidden pointers"

// canaryHolders returns the ways in which code holds objects and files.
func canaryHolders() map[string]any {
	o, f := canaryObject(), canaryFile()
	tree := Payload{Files: []File{f}, DirMode: 0o755}
	return map[string]any{
		"Object": *o, "*Object": o, "**Object": &o, "[]Object": []Object{*o}, "map of *Object": map[string]*Object{"k": o}, "any of Object": []any{*o, o},
		"File": f, "*File": &f, "[]File": []File{f}, "Payload": tree, "*Payload": &tree,
		"holder": valueHolder{Object: *o, File: &f, Payload: tree}, "*holder": &valueHolder{Object: *o, File: &f, Payload: tree},
		"embedded": embedder{*o}, "embedded pointer": ptrEmbedder{o}, "embedded twice": doubleEmbedder{*o, f},
		hiddenName: hiddenHolder{object: o, file: &f, tree: &tree, byRef: map[Ref]*Object{o.Ref: o}},
	}
}

func TestObjectString(t *testing.T) {
	o := Object{
		Ref: Ref{Kind: ConfigMap, Namespace: "ns", Name: "app"}, Version: Version{ResourceVersion: "7"},
		Data: map[string][]byte{"a": nil, "b": nil}, BinaryData: map[string][]byte{"c": nil},
	}
	if got, want := o.String(), `ConfigMap "ns/app" at 7 (3 keys)`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
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

// logTo logs a value in each way.
func logTo(log klog.Logger, value any) {
	log = log.WithValues("with", value)
	log.Info("message", "value", value)
	log.V(0).Error(fmt.Errorf("of %v", value), "message", "value", value)
	klog.FromContext(klog.NewContext(context.Background(), log)).Info("message", "value", value)
}
