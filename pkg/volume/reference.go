package volume

// Table lists the fields of one object that a pod's author writes.
type Table struct {
	// At is where such objects are, with [] for each element of a list; "" is the attributes
	// themselves.
	At     []string
	Fields []Field
}

// Field is one field. Its texts are Markdown: docs/attributes.md is made of them.
type Field struct {
	Name string
	// Value says what it takes, and Default what counts where it is not given.
	Value, Default string
	Meaning        string
}

// What fields take and mean that are in several tables.
const (
	aName     = "a name"
	aPath     = "a relative path"
	aMode     = "an integer or an octal string, up to 0777"
	trueFalse = "`true` or `false`"
	yamlList  = "a YAML or JSON list"
	required  = "required"
	podsOwn   = "the pod's own"
	ofObject  = "of the object"
)

// Reference returns all fields that Parse takes.
func Reference() []Table {
	return append([]Table{{[]string{""}, attributeFields()}, {[]string{"sources[]"}, []Field{
		{"configMap", "an object", "", "shows a ConfigMap"},
		{"secret", "an object", "", "shows a Secret"},
		{"volume", "an object", "", "shows what one of the pod's own volumes names ([volume sources](volume-sources.md))"},
		{"env", "an object", "", "makes a file of variables ([environment files](env-files.md))"},
		{"podEnv", "an object", "", "makes a file of a container's own variables"},
	}}, {[]string{"sources[].configMap", "sources[].secret"}, []Field{
		{"name", aName, required, ofObject},
		{"namespace", aName, podsOwn, "of the object ([cross-namespace](cross-namespace.md))"},
		{"optional", trueFalse, "`false`", "whether the object, and the keys in `items`, may be missing"},
		{"items", "a list", "every key", "the keys to show"},
	}}, {[]string{"sources[].configMap.items[]", "sources[].secret.items[]", "items[]"}, []Field{
		{"key", "a key", required, ofObject},
		{"path", aPath, required, "of the key's file"},
		{"mode", aMode, "`defaultMode`", "of the file"},
		{"user", "an integer", "the volume's `uid`", "the owner of the file"},
	}}, {[]string{"sources[].volume"}, []Field{
		{"name", aName, required, "of a volume of the pod"},
	}}}, variableTables()...)
}

// attributeFields are the attributes.
func attributeFields() []Field {
	return []Field{
		{attrConfigMap, aName, "", "the one ConfigMap to show: the short form"},
		{attrSecret, aName, "", "the one Secret to show: the short form"},
		{attrVolume, aName, "", "the one volume of the pod to show: the short form"},
		{attrNamespace, aName, podsOwn, "of the object in the short form ([cross-namespace](cross-namespace.md))"},
		{attrOptional, "`\"true\"` or `\"false\"`", "`\"false\"`", "whether the object in the short form, and the keys in `items`, may be missing"},
		{attrItems, yamlList, "every key", "the keys to show of the object in the short form"},
		{attrSources, yamlList, "", "all that the volume shows; not with the short form"},
		{attrDefaultMode, "an octal string with a leading zero, up to `\"0777\"`", "`\"0644\"`", "the mode of files without one of their own"},
		{attrUID, "a decimal number", "root", "the owner of all files and directories; modes are exact then"},
		{attrGID, "a decimal number", "the pod's `fsGroup`", "their group; modes are exact then"},
		{attrUpdatePolicy, "`Live` or `Pinned`", "`Live`", "files of a `Pinned` volume are written once"},
		{attrStrategy, "`Atomic` or `InPlace`", "`Atomic`", "`InPlace` changes `subPath` mounts ([updates](updates.md#write-strategies))"},
		{attrOnDelete, "`Keep` or `Remove`", "`Keep`", "the files of a required object that is deleted ([updates](updates.md#deleted-objects))"},
	}
}

// variableTables are those of sources that make a file of variables.
func variableTables() []Table {
	const format, aFormat = "`dotenv` or `shell`", "the syntax of the file"
	const maybe = "whether the object or key may be missing"
	return []Table{{[]string{"sources[].env"}, []Field{
		{"path", aPath, required, "of the file"},
		{"mode", aMode, "`defaultMode`", "of the file"},
		{"format", format, "`dotenv`", aFormat},
		{"envFrom", "a list", "", "objects, every key of which is a variable"},
		{"env", "a list", "", "single variables"},
	}}, {[]string{"sources[].env.envFrom[]"}, []Field{
		{"configMapRef", "an object", "", "a ConfigMap"},
		{"secretRef", "an object", "", "a Secret"},
		{"prefix", "a text", "", "of the variables' names"},
	}}, {[]string{"sources[].env.envFrom[].configMapRef", "sources[].env.envFrom[].secretRef"}, []Field{
		{"name", aName, required, ofObject},
		{"namespace", aName, podsOwn, ofObject},
		{"optional", trueFalse, "`false`", maybe},
	}}, {[]string{"sources[].env.env[]"}, []Field{
		{"name", aName, required, "of the variable"},
		{"value", "a text", "", "`$(NAME)` in it stands for another variable"},
		{"valueFrom", "an object", "", "counts if `value` is empty"},
	}}, {[]string{"sources[].env.env[].valueFrom"}, []Field{
		{"configMapKeyRef", "an object", "", "a key of a ConfigMap"},
		{"secretKeyRef", "an object", "", "a key of a Secret"},
		{"fieldRef", "an object", "", "a field of the pod"},
		{"resourceFieldRef", "", "", "is refused: a volume can't know its value"},
		{"fileKeyRef", "", "", "is refused: a volume can't know its value"},
	}}, {[]string{"sources[].env.env[].valueFrom.configMapKeyRef", "sources[].env.env[].valueFrom.secretKeyRef"}, []Field{
		{"name", aName, required, ofObject},
		{"namespace", aName, podsOwn, ofObject},
		{"key", "a key", required, ofObject},
		{"optional", trueFalse, "`false`", maybe},
	}}, {[]string{"sources[].env.env[].valueFrom.fieldRef"}, []Field{
		{"apiVersion", "`v1`", "`v1`", ""},
		{"fieldPath", "`metadata.name`, `metadata.namespace`, `metadata.uid`, `spec.nodeName` or `spec.serviceAccountName`", required, "the field"},
	}}, {[]string{"sources[].podEnv"}, []Field{
		{"path", aPath, required, "of the file"},
		{"mode", aMode, "`defaultMode`", "of the file"},
		{"format", format, "`dotenv`", aFormat},
		{"container", aName, required, "of the pod's container"},
	}}}
}

// attributeNames returns the names of the attributes.
func attributeNames() []string {
	var names []string
	for _, f := range attributeFields() {
		names = append(names, f.Name)
	}
	return names
}
