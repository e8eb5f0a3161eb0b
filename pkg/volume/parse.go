package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The attributes' names that are also parts of field paths.
const (
	attrVolume    = "volume"
	attrNamespace = "namespace"
	attrItems     = "items"
	attrSources   = "sources"
)

// parser turns attributes into a spec. It is used for one call of Parse.
type parser struct {
	decoder
	given map[string]string
	pod   Pod
	// across means that refs may name other namespaces than the pod's.
	across bool
	// window is the spread of a volume without that attribute.
	window time.Duration
	// volumes has the field that names each of the pod's own volumes. versions has the field of the versions source, or "".
	volumes  map[string]string
	versions string
	// canaryAt is the first field that names a canary, or nil.
	canaryAt *field.Path
}

// Option changes what Parse accepts.
type Option func(*parser)

// AcrossNamespaces allows refs to name other namespaces than the pod's. Parse does not check whether the pod may read those objects.
func AcrossNamespaces() Option { return func(p *parser) { p.across = true } }

// DefaultSpread sets the spread of a volume without that attribute. 0 means none.
func DefaultSpread(window time.Duration) Option { return func(p *parser) { p.window = window } }

// CheckSpread returns an error if a duration cannot be the value of spread. 0 means no spread.
func CheckSpread(window time.Duration) error {
	if window != 0 && (window < minSpread || window > maxSpread) {
		return errors.New("must be a duration from 1s to 1h, such as 5m, or 0s for none")
	}
	return nil
}

// Parse turns the attributes of a pod's volume into a validated Spec with defaults applied. volumeContext may hold the whole volume
// context; the kubelet's own keys are ignored. pod is the pod that the volume belongs to. Its namespace is the default for names, and
// without AcrossNamespaces the only one.
//
// The error lists every wrong field with its path, the kind of the wrong value, and what would be right. If no field is wrong by itself, it
// lists the conflicts between fields.
func Parse(volumeContext map[string]string, pod Pod, options ...Option) (*Spec, error) {
	p := &parser{given: Attributes(volumeContext), pod: pod, volumes: map[string]string{}}
	for _, option := range options {
		option(p)
	}
	size := 0
	for name, value := range p.given {
		size += len(name) + len(value)
	}
	if size > MaxAttributesSize {
		return nil, field.TooLong(field.NewPath("volumeAttributes"), "", MaxAttributesSize)
	}
	values, err := json.Marshal(p.given)
	if err != nil {
		return nil, fmt.Errorf("write the volume attributes as JSON: %w", err)
	}
	spec := p.spec(values)
	if err := p.err(); err != nil {
		return nil, err
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	return spec, nil
}

func (p *parser) spec(values []byte) *Spec {
	a := attributes{UpdatePolicy: UpdateLive, WriteStrategy: WriteAtomic, OnDelete: DeleteKeep}
	p.decode(nil, values, &a)
	spec := &Spec{UpdatePolicy: a.UpdatePolicy, WriteStrategy: a.WriteStrategy, OnDelete: a.OnDelete}
	if a.DefaultMode != nil {
		spec.DefaultMode = p.mode(field.NewPath("defaultMode"), &intstr.IntOrString{Type: intstr.String, StrVal: *a.DefaultMode})
	}
	spec.UID, spec.GID = p.id("uid", a.UID), p.id("gid", a.GID)
	supported(p, field.NewPath("updatePolicy"), a.UpdatePolicy, UpdateLive, UpdatePinned)
	supported(p, field.NewPath("writeStrategy"), a.WriteStrategy, WriteAtomic, WriteInPlace)
	supported(p, field.NewPath("onDelete"), a.OnDelete, DeleteKeep, DeleteRemove)
	spec.Spread = p.spread(a.Spread, spec.Pinned())
	spec.SameRevision = p.sameRevision(a.SameRevision, spec.InPlace())
	spec.Directories = p.directories(a.Directories)
	if a.Sources != nil {
		spec.Sources = p.listForm(*a.Sources)
	} else {
		spec.Sources = p.shortForm(a)
	}
	p.withCanaries(spec)
	return spec
}

// id reads a decimal user or group ID. It returns nil if the attribute is not set.
func (p *parser) id(name string, text *string) *int64 {
	if text == nil {
		return nil
	}
	id, err := strconv.ParseUint(*text, 10, 31)
	if err != nil {
		p.add(field.Invalid(field.NewPath(name), shorten(*text), fmt.Sprintf("must be a decimal number from 0 to %d", math.MaxInt32)))
	}
	n := int64(id)
	return &n
}

// spread reads the attribute spread. Without it the default applies, but a pinned volume takes no change and has no spread.
func (p *parser) spread(text *string, pinned bool) time.Duration {
	switch {
	case text == nil && pinned:
		return 0
	case text == nil:
		return p.window
	}
	at := field.NewPath("spread")
	window, err := time.ParseDuration(*text)
	if err != nil {
		window = -1
	}
	switch err := CheckSpread(window); {
	case err != nil:
		p.add(field.Invalid(at, shorten(*text), err.Error()))
	case pinned:
		p.add(field.Forbidden(at, "must not be set beside updatePolicy Pinned: such a volume never changes"))
	}
	return window
}

// sameRevision reads the attribute sameRevision.
func (p *parser) sameRevision(text *string, inPlace bool) bool {
	if text == nil {
		return false
	}
	at := field.NewPath("sameRevision")
	supported(p, at, *text, "false", "true")
	if *text == "true" && inPlace {
		p.add(field.Forbidden(at, "must not be true beside writeStrategy InPlace: readers of such a volume may see a change of several files half done"))
	}
	return *text == "true"
}

// supported refuses a value that is not one of values.
func supported[T ~string](p *parser, at *field.Path, value T, values ...T) {
	if !slices.Contains(values, value) {
		p.add(field.NotSupported(at, shorten(string(value)), values))
	}
}

// valid refuses an empty text, or a text with problems found by Kubernetes' validation.
func (p *parser) valid(at *field.Path, text, required string, check func(string) []string) bool {
	if text == "" {
		p.add(field.Required(at, required))
		return false
	}
	problems := check(text)
	if len(problems) > 0 {
		p.add(field.Invalid(at, shorten(text), strings.Join(problems, "; ")))
	}
	return len(problems) == 0
}

// set returns those of some attributes that are set.
func (p *parser) set(names ...string) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		_, ok := p.given[name]
		return !ok
	})
}

// listForm reads the attribute sources.
func (p *parser) listForm(text string) []Source {
	for _, name := range p.set("configMap", "secret", attrVolume, attrNamespace, "optional", attrItems) {
		p.add(field.Forbidden(field.NewPath(name), "must not be set beside sources: name the object in sources"))
	}
	at := field.NewPath(attrSources)
	elements, ok := p.list(at, text)
	if ok && len(elements) == 0 {
		p.add(field.Required(at, "must have at least one source"))
	}
	var sources []Source
	each(&p.decoder, at, elements, func(at *field.Path, from *source) {
		if kind, ok := p.oneOf(at, from); ok {
			sources = append(sources, p.source(at.Child(kind), from))
		}
	})
	return sources
}

// source reads one element of sources. at is the field that gives its type.
func (p *parser) source(at *field.Path, from *source) Source {
	s := Source{Field: at.String()}
	file := func(path string) string { return p.path(at.Child("path"), path) }
	mode := func(mode *intstr.IntOrString) *fs.FileMode { return p.mode(at.Child("mode"), mode) }
	switch {
	case from.ConfigMap != nil:
		s.Projection = p.projection(at.Child("name"), at, ConfigMap, from.ConfigMap)
		s = s.In(p.below(at.Child("path"), from.ConfigMap.Path))
	case from.Secret != nil:
		s.Projection = p.projection(at.Child("name"), at, Secret, from.Secret)
		s = s.In(p.below(at.Child("path"), from.Secret.Path))
	case from.Volume != nil:
		s.Volume, s.Below = p.volume(at.Child("name"), from.Volume.Name), p.below(at.Child("path"), from.Volume.Path)
	case from.Env != nil:
		s.Path, s.Mode, s.Format = file(from.Env.Path), mode(from.Env.Mode), p.format(at.Child("format"), from.Env.Format)
		s.Env = p.env(at, from.Env, false)
	case from.PodEnv != nil:
		s.Path, s.Mode, s.Format = file(from.PodEnv.Path), mode(from.PodEnv.Mode), p.format(at.Child("format"), from.PodEnv.Format)
		p.valid(at.Child("container"), from.PodEnv.Container, "must name a container of the pod", utilvalidation.IsDNS1123Label)
		s.PodEnv = &PodEnv{Container: from.PodEnv.Container}
	case from.Join != nil:
		s.Path, s.Mode = file(from.Join.Path), mode(from.Join.Mode)
		s.Join = p.join(at.Child(attrSources), from.Join.Sources)
	case from.Expand != nil:
		s.Path, s.Mode = file(from.Expand.Path), mode(from.Expand.Mode)
		s.Expand = p.expand(at, from.Expand)
	case from.Versions != nil:
		if p.versions != "" {
			p.add(field.Forbidden(at, "must not be there twice: "+p.versions+" is the same file"))
		}
		p.versions, s.Versions = s.Field, true
		s.Path, s.Mode = file(from.Versions.Path), mode(from.Versions.Mode)
	}
	return s
}

// projection reads the fields that name an object and its keys.
func (p *parser) projection(nameAt, at *field.Path, kind Kind, from *projection) *Projection {
	ref := p.ref(nameAt, at, kind, from.Name, from.Namespace)
	return &Projection{Ref: ref, Items: p.items(at.Child(attrItems), from.Items), Optional: p.canary(at, from.Canary, from.Optional), Canary: from.Canary}
}

// join reads the parts of a joined file.
func (p *parser) join(at *field.Path, elements []json.RawMessage) []Reference {
	if len(elements) == 0 {
		p.add(field.Required(at, "must have at least one source"))
	}
	parts := []Reference{}
	each(&p.decoder, at, elements, func(at *field.Path, from *joinSource) {
		if part := p.oneKey(at, from); part != nil {
			parts = append(parts, *part)
		}
	})
	return parts
}

// oneKey reads a key of an object. It returns nil if there is none, or several.
func (p *parser) oneKey(at *field.Path, from *joinSource) *Reference {
	kind, ok := p.oneOf(at, from)
	switch {
	case !ok:
		return nil
	case from.Secret != nil:
		p.noCanary(at.Child(kind), from.Secret.Canary)
		return p.keyRef(at.Child(kind), Secret, from.Secret)
	default:
		p.noCanary(at.Child(kind), from.ConfigMap.Canary)
		return p.keyRef(at.Child(kind), ConfigMap, from.ConfigMap)
	}
}

// expand reads a text and its variables.
func (p *parser) expand(at *field.Path, from *expand) *Expand {
	e := &Expand{}
	if text := p.oneKey(at, &joinSource{ConfigMap: from.ConfigMap, Secret: from.Secret}); text != nil {
		e.Text = *text
	}
	e.Env = *p.env(at, &env{EnvFrom: from.EnvFrom, Env: from.Env}, true)
	if len(from.EnvFrom)+len(from.Env) == 0 {
		p.add(field.Required(at.Child("env"), "must have at least one variable, or envFrom an object"))
	}
	return e
}

// items reads a list of items. A refused path becomes "".
func (p *parser) items(at *field.Path, elements []json.RawMessage) []Item {
	var items []Item
	each(&p.decoder, at, elements, func(at *field.Path, from *item) {
		p.key(at.Child("key"), from.Key)
		items = append(items, Item{Key: from.Key, Path: p.path(at.Child("path"), from.Path), Mode: p.mode(at.Child("mode"), from.Mode), User: from.User})
		if from.User != nil {
			if err := CheckUser(*from.User); err != nil {
				p.add(field.Invalid(at.Child("user"), *from.User, err.Error()))
			}
		}
	})
	return items
}

// format reads the format of an env file. The default is EnvDotenv.
func (p *parser) format(at *field.Path, from *EnvFormat) EnvFormat {
	if from == nil {
		return EnvDotenv
	}
	supported(p, at, *from, EnvDotenv, EnvShell, EnvEnviron)
	return *from
}

// below reads the directory of a source. It returns the zero Directory if none is set.
func (p *parser) below(at *field.Path, dir *string) Directory {
	switch {
	case dir == nil:
		return Directory{}
	case *dir != "" && path.Clean(*dir) == ".":
		p.add(field.Invalid(at, shorten(*dir), "must be a directory in the volume; leave the field out for the volume itself"))
		return Directory{}
	}
	return Directory{Path: p.path(at, *dir), Field: at.String()}
}

// path returns the clean form of a path, or "" if it was refused.
func (p *parser) path(at *field.Path, path string) string {
	clean, err := CleanPath(path)
	switch {
	case path == "":
		p.add(field.Required(at, "must be a relative path"))
	case err != nil:
		p.add(field.Invalid(at, shorten(path), err.Error()))
	}
	return clean
}

// mode reads a mode: an integer as in Kubernetes, or an octal string.
func (p *parser) mode(at *field.Path, from *intstr.IntOrString) *fs.FileMode {
	if from == nil {
		return nil
	}
	mode, shown, err := fs.FileMode(from.IntVal), any(from.IntVal), CheckMode(from.IntVal)
	if from.Type == intstr.String {
		mode, err = ParseMode(from.StrVal)
		shown = shorten(from.StrVal)
	}
	if err != nil {
		p.add(field.Invalid(at, shown, err.Error()))
	}
	return &mode
}

// shortForm reads the attributes that name a single object or volume.
func (p *parser) shortForm(a attributes) []Source {
	given := p.set("configMap", "secret", attrVolume)
	switch {
	case len(given) > 1:
		p.add(field.Forbidden(field.NewPath(given[1]), fmt.Sprintf("must not be set beside %s: list both in sources", given[0])))
		return nil
	case len(given) == 0 && slices.ContainsFunc(p.errs, func(err *field.Error) bool { return err.Type == field.ErrorTypeForbidden }):
		return nil // an unknown attribute may be the intended one
	case len(given) == 0:
		p.add(field.Required(field.NewPath(attrSources), "one of configMap, secret, volume and sources must be set"))
		return nil
	}
	at := field.NewPath(given[0])
	if a.Volume != nil {
		for _, name := range p.set(attrNamespace, "optional", attrItems) {
			p.add(field.Forbidden(field.NewPath(name), "must not be set beside volume: the pod's own volume sets this"))
		}
		return []Source{{Field: at.String(), Volume: p.volume(at, *a.Volume)}}
	}
	kind, from := ConfigMap, &projection{Name: p.given[given[0]], Namespace: a.Namespace}
	if a.Secret != nil {
		kind = Secret
	}
	if a.Optional != nil {
		supported(p, field.NewPath("optional"), *a.Optional, "false", "true")
		from.Optional = new(*a.Optional == "true")
	}
	if a.Items != nil {
		from.Items, _ = p.list(field.NewPath(attrItems), *a.Items)
	}
	return []Source{{Field: at.String(), Projection: p.projection(at, nil, kind, from)}}
}

// ref reads the name of an object, and its namespace below at. The default is the pod's own namespace.
func (p *parser) ref(nameAt, at *field.Path, kind Kind, name string, namespace *string) Ref {
	p.valid(nameAt, name, fmt.Sprintf("must name a %s", kind), func(name string) []string { return validation.NameIsDNSSubdomain(name, false) })
	ref := Ref{Kind: kind, Namespace: p.pod.Namespace, Name: name}
	if namespace == nil || *namespace == p.pod.Namespace {
		return ref
	}
	ref.Namespace, at = *namespace, at.Child(attrNamespace)
	ok := p.valid(at, *namespace, "must name a namespace; leave the field out for the pod's own", func(name string) []string { return validation.ValidateNamespaceName(name, false) })
	if ok && !p.across {
		p.add(field.Invalid(at, *namespace, fmt.Sprintf("must be the pod's own namespace %q: this node's plugin shows no objects of others (--cross-namespace)", p.pod.Namespace)))
	}
	return ref
}

func (p *parser) key(at *field.Path, key string) {
	p.valid(at, key, "must name a key of the object", utilvalidation.IsConfigMapKey)
}

// volume reads the name of one of the pod's own volumes. Two sources must not show the same volume, because the number of sources limits
// what a volume shows.
func (p *parser) volume(at *field.Path, name string) string {
	p.valid(at, name, "must name a volume of the pod", utilvalidation.IsDNS1123Label)
	if other, again := p.volumes[name]; again && name != "" {
		p.add(field.Invalid(at, shorten(name), fmt.Sprintf("must not be shown twice: %s shows it", other)))
	}
	p.volumes[name] = at.String()
	return name
}

// env reads the variables of an env file or of a text.
func (p *parser) env(at *field.Path, from *env, ofText bool) *Env {
	e := &Env{}
	each(&p.decoder, at.Child("envFrom"), from.EnvFrom, func(at *field.Path, from *envFrom) {
		if from.Prefix != "" {
			p.variable(at.Child("prefix"), from.Prefix, ofText)
		}
		name, ok := p.oneOf(at, from)
		if !ok {
			return
		}
		kind, object := ConfigMap, from.ConfigMapRef
		if from.SecretRef != nil {
			kind, object = Secret, from.SecretRef
		}
		at = at.Child(name)
		ref := p.ref(at.Child("name"), at, kind, object.Name, object.Namespace)
		if ofText {
			p.noCanary(at, object.Canary)
		}
		isOptional := p.canary(at, object.Canary, object.Optional)
		e.From = append(e.From, EnvFrom{Prefix: from.Prefix, Ref: ref, Optional: isOptional, Canary: object.Canary, Field: at.String()})
	})
	each(&p.decoder, at.Child("env"), from.Env, func(at *field.Path, from *envVar) {
		// A name that the file's format cannot hold is left out when the file is made.
		p.variable(at.Child("name"), from.Name, ofText)
		variable := p.envVar(at.Child("valueFrom"), from)
		if ofText && variable.Key != nil {
			p.noCanary(field.NewPath(variable.Key.Field), variable.Key.Canary)
		}
		variable.Escape = p.escape(at.Child("escape"), from.Escape, ofText)
		e.Vars = append(e.Vars, variable)
	})
	return e
}

// variable reads the name of a variable, or a prefix of names. In a text, names with $, ( or ) would be ambiguous.
func (p *parser) variable(at *field.Path, name string, ofText bool) {
	if p.valid(at, name, "must name a variable", utilvalidation.IsRelaxedEnvVarName) && ofText && strings.ContainsAny(name, "$()") {
		p.add(field.Invalid(at, shorten(name), "must not contain $, ( or ): the text refers to the variable by $(NAME)"))
	}
}

// escape reads how a variable's value is written.
func (p *parser) escape(at *field.Path, from *Escape, ofText bool) Escape {
	switch {
	case from == nil:
		return ""
	case !ofText:
		p.add(field.Forbidden(at, "must not be set in an env file, whose format says how values are quoted; only expand has it"))
	default:
		supported(p, at, *from, EscapeJSON, EscapeURL, EscapeNone)
	}
	return *from
}

func (p *parser) envVar(at *field.Path, v *envVar) EnvVar {
	variable := EnvVar{Name: v.Name, Value: v.Value}
	if v.ValueFrom == nil {
		return variable
	}
	name, ok := p.oneOf(at, v.ValueFrom)
	if !ok {
		return variable
	}
	at = at.Child(name)
	switch from := v.ValueFrom; {
	case from.ConfigMapKeyRef != nil:
		variable.Key = p.keyRef(at, ConfigMap, from.ConfigMapKeyRef)
	case from.SecretKeyRef != nil:
		variable.Key = p.keyRef(at, Secret, from.SecretKeyRef)
	case from.FieldRef != nil:
		variable.FieldRef = from.FieldRef.FieldPath
		if from.FieldRef.APIVersion != "" {
			supported(p, at.Child("apiVersion"), from.FieldRef.APIVersion, "v1")
		}
		supported(p, at.Child("fieldPath"), variable.FieldRef, PodFields()...)
	default:
		p.add(field.Forbidden(at, "a volume can't know its value; set it in the container's own env"))
	}
	return variable
}

func (p *parser) keyRef(at *field.Path, kind Kind, from *keyRef) *Reference {
	ref := p.ref(at.Child("name"), at, kind, from.Name, from.Namespace)
	p.key(at.Child("key"), from.Key)
	return &Reference{Ref: ref, Key: from.Key, Optional: p.canary(at, from.Canary, from.Optional), Canary: from.Canary, Field: at.String()}
}
