-- +goose Up

-- Capabilities are a list of expressions; they were an object of expressions by attribute. A value without an operator
-- was compared as a text.
update reservations set want = jsonb_set(want, '{capabilities}', (
    select coalesce(jsonb_agg(key || case when value ~ '^\s*(s?[<>=!]|<[a-z-]+>)' then ' ' else ' s== ' end || value),
                    '[]')
    from jsonb_each_text(want -> 'capabilities')))
where jsonb_typeof(want -> 'capabilities') = 'object';

-- +goose Down
-- An expression is an attribute, and what follows it.
update reservations set want = jsonb_set(want, '{capabilities}', (
    select coalesce(jsonb_object_agg(split_part(text, ' ', 1), regexp_replace(text, '^\S+ (s== )?', '')), '{}')
    from jsonb_array_elements_text(want -> 'capabilities') text))
where jsonb_typeof(want -> 'capabilities') = 'array';
